"""Offset tracker of a partition against a model: consumers change, and nothing is lost."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from qts.outbox.kafka_partition import WINDOW, OffsetTracker

KAFKA_LIMIT = 4096


class Consumers(RuleBasedStateMachine):
    """A log with gaps; each consumer starts from the last commit of the previous one."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[int] = []
        self.finished: set[int] = set()
        self.committed: tuple[int, str] | None = None
        self.committed_attempts: dict[int, int] = {}  # attempts started before the last commit
        self.attempts: dict[int, int] = {}
        self._take_over()

    def _take_over(self) -> None:
        self.offsets = OffsetTracker(*self.committed) if self.committed else OffsetTracker()
        self.position = self.committed[0] if self.committed else 0
        self.open: list[int] = []
        self.finished_here: set[int] = set()

    @rule(gap=st.integers(1, 3))
    def publish(self, gap: int) -> None:
        self.log.append((self.log[-1] if self.log else -1) + gap)

    @precondition(lambda self: any(offset >= self.position for offset in self.log))
    @rule()
    def add(self) -> None:
        offset = next(offset for offset in self.log if offset >= self.position)
        self.position = offset + 1
        if self.offsets.add(offset):
            assert offset not in self.finished, "a finished event is not repeated"
            assert self.offsets.attempts(offset) == self.committed_attempts.get(offset, 0)
            self.open.append(offset)
            self.attempts[offset] = self.committed_attempts.get(offset, 0)
        else:
            assert offset in self.finished

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def start_attempt(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(self.open))
        self.attempts[offset] += 1
        assert self.offsets.start_attempt(offset) == self.attempts[offset]

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(self.open))
        self.open.remove(offset)
        self.offsets.finish(offset)
        self.finished_here.add(offset)

    @rule()
    def commit(self) -> None:
        self.committed = (self.offsets.first_open, self.offsets.metadata())
        self.finished |= self.finished_here
        self.committed_attempts.update({offset: self.attempts[offset] for offset in self.open})

    @rule()
    def crash(self) -> None:
        self._take_over()

    @invariant()
    def nothing_before_the_first_open_is_unfinished(self) -> None:
        done = self.finished | self.finished_here
        assert all(offset in done for offset in self.log if offset < self.offsets.first_open)


TestConsumers = Consumers.TestCase
TestConsumers.settings = settings(max_examples=200, stateful_step_count=40)


@given(st.integers(0, 2**62), st.data())
def test_a_full_window_fits_into_kafkas_metadata(start: int, data: st.DataObject) -> None:
    offsets = OffsetTracker(start)
    offset = start
    finished = data.draw(st.lists(st.booleans(), min_size=WINDOW, max_size=WINDOW))
    for ends in finished:
        assert not offsets.is_full
        offsets.add(offset)
        offsets.start_attempt(offset)
        if ends and offset > start:
            offsets.finish(offset)
        offset += 1
    assert offsets.is_full
    assert len(offsets.metadata()) < KAFKA_LIMIT


def test_the_next_consumer_repeats_nothing_and_counts_attempts() -> None:
    first = OffsetTracker(10)
    for offset in (10, 11, 12, 14):  # 13 is a gap
        first.add(offset)
        first.start_attempt(offset)
    first.finish(12)
    first.finish(14)
    first.start_attempt(11)
    second = OffsetTracker(first.first_open, first.metadata())
    assert [second.add(offset) for offset in (10, 11, 12, 14)] == [True, True, False, False]
    assert (second.first_open, second.attempts(10), second.attempts(11)) == (10, 1, 2)


def test_foreign_metadata_is_ignored() -> None:
    offsets = OffsetTracker(5, "something else")
    assert offsets.add(5)
    assert (offsets.first_open, offsets.attempts(5)) == (5, 0)


def test_an_attempt_that_did_not_begin_is_not_counted() -> None:
    offsets = OffsetTracker(0)
    offsets.add(0)
    offsets.start_attempt(0)
    offsets.undo_attempt(0)
    assert msgspec.json.decode(offsets.metadata()) == {"ended": [], "tries": {}}
