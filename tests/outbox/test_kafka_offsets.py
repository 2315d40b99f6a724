"""The ledger of a partition against a plain model: owners come and go, and nothing is lost."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from qts.outbox.kafka_offsets import WINDOW, OffsetTracker

KAFKA_LIMIT = 4096


class Owners(RuleBasedStateMachine):
    """A log with holes; each owner starts from the last commit of the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[int] = []
        self.ended: set[int] = set()
        self.committed: tuple[int, str] | None = None
        self.noted: dict[int, int] = {}  # attempts begun before the last commit
        self.begun: dict[int, int] = {}
        self._take_over()

    def _take_over(self) -> None:
        self.ledger = OffsetTracker(*self.committed) if self.committed else OffsetTracker()
        self.position = self.committed[0] if self.committed else 0
        self.open: list[int] = []
        self.ended_here: set[int] = set()

    @rule(gap=st.integers(1, 3))
    def publish(self, gap: int) -> None:
        self.log.append((self.log[-1] if self.log else -1) + gap)

    @precondition(lambda self: any(offset >= self.position for offset in self.log))
    @rule()
    def take(self) -> None:
        offset = next(offset for offset in self.log if offset >= self.position)
        self.position = offset + 1
        if self.ledger.take(offset):
            assert offset not in self.ended, "what ended before the commit is not repeated"
            assert self.ledger.tries(offset) == self.noted.get(offset, 0)
            self.open.append(offset)
            self.begun[offset] = self.noted.get(offset, 0)
        else:
            assert offset in self.ended

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(self.open))
        self.begun[offset] += 1
        assert self.ledger.begin(offset) == self.begun[offset]

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(self.open))
        self.open.remove(offset)
        self.ledger.end(offset)
        self.ended_here.add(offset)

    @rule()
    def commit(self) -> None:
        self.committed = (self.ledger.floor, self.ledger.note())
        self.ended |= self.ended_here
        self.noted.update({offset: self.begun[offset] for offset in self.open})

    @rule()
    def crash(self) -> None:
        self._take_over()

    @invariant()
    def nothing_before_the_floor_is_unfinished(self) -> None:
        done = self.ended | self.ended_here
        assert all(offset in done for offset in self.log if offset < self.ledger.floor)


TestOwners = Owners.TestCase
TestOwners.settings = settings(max_examples=200, stateful_step_count=40)


@given(st.integers(0, 2**62), st.data())
def test_a_full_window_fits_into_kafkas_metadata(start: int, data: st.DataObject) -> None:
    ledger = OffsetTracker(start)
    offset = start
    ended = data.draw(st.lists(st.booleans(), min_size=WINDOW, max_size=WINDOW))
    for ends in ended:
        assert not ledger.is_full
        ledger.take(offset)
        ledger.begin(offset)
        if ends and offset > start:
            ledger.end(offset)
        offset += 1
    assert ledger.is_full
    assert len(ledger.note()) < KAFKA_LIMIT


def test_the_next_owner_repeats_nothing_and_knows_the_attempts() -> None:
    first = OffsetTracker(10)
    for offset in (10, 11, 12, 14):  # 13 is a hole
        first.take(offset)
        first.begin(offset)
    first.end(12)
    first.end(14)
    first.begin(11)
    second = OffsetTracker(first.floor, first.note())
    assert [second.take(offset) for offset in (10, 11, 12, 14)] == [True, True, False, False]
    assert (second.floor, second.tries(10), second.tries(11)) == (10, 1, 2)


def test_a_note_of_others_counts_as_none() -> None:
    ledger = OffsetTracker(5, "something else")
    assert ledger.take(5)
    assert (ledger.floor, ledger.tries(5)) == (5, 0)


def test_an_attempt_that_did_not_begin_is_not_counted() -> None:
    ledger = OffsetTracker(0)
    ledger.take(0)
    ledger.begin(0)
    ledger.undo(0)
    assert msgspec.json.decode(ledger.note()) == {"ended": [], "tries": {}}
