"""The ring, through its binding, walks like a deque."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from qts._native import Ring

TWO_TO_64 = 2**64
starts = st.one_of(
    st.just(0),
    st.integers(TWO_TO_64 - 40, TWO_TO_64 - 1),
    st.integers(2**63 - 20, 2**63 + 20),
    st.integers(0, TWO_TO_64 - 1),
)


class RingWalk(RuleBasedStateMachine):
    """Each call on the ring and on a deque; a refused push must have been a nearly full ring."""

    @initialize(power=st.integers(1, 6), start=starts)
    def build(self, power: int, start: int) -> None:
        self.capacity = 2**power
        self.ring = Ring(self.capacity, start)
        self.model: deque[int] = deque()
        self.counter = 0

    def fresh(self, count: int) -> list[int]:
        self.counter += count
        return list(range(self.counter - count, self.counter))

    def took(self, items: list[int], pushed: int, wanted: int) -> None:
        free = self.capacity - len(self.model)
        assert pushed <= min(wanted, free)
        assert pushed == wanted or free - pushed < self.ring.lag
        self.model.extend(items[:pushed])

    @rule()
    def push_one(self) -> None:
        items = self.fresh(1)
        self.took(items, int(self.ring.try_push(items[0])), 1)

    @rule(count=st.integers(0, 70))
    def push_many(self, count: int) -> None:
        items = self.fresh(count)
        self.took(items, self.ring.push_many(items), count)

    @rule(count=st.integers(0, 70))
    def write_in_place(self, count: int) -> None:
        items = self.fresh(count)
        pushed = self.ring.claim_and_commit(items)
        # A run may stop at the ring's end, so only the upper bound and progress are promised.
        assert pushed > 0 or count == 0 or self.capacity - len(self.model) < self.ring.lag
        self.took(items, pushed, pushed)

    @rule()
    def pop_one(self) -> None:
        assert self.ring.try_pop() == (self.model.popleft() if self.model else None)

    @rule(most=st.integers(0, 70))
    def pop_many(self, most: int) -> None:
        expected = [self.model.popleft() for _ in range(min(most, len(self.model)))]
        assert self.ring.pop_many(most) == expected

    @rule(most=st.integers(0, 70), share=st.floats(0, 1))
    def peek_and_release_some(self, most: int, share: float) -> None:
        seen = self.ring.peek(most)
        assert seen == list(self.model)[: len(seen)]
        assert bool(seen) == bool(most and self.model)
        count = round(len(seen) * share)
        self.ring.release(count)
        for _ in range(count):
            self.model.popleft()

    @rule()
    def drained_ring_takes_its_whole_capacity(self) -> None:
        while self.model:
            assert self.ring.try_pop() == self.model.popleft()
        assert self.ring.try_pop() is None
        items = self.fresh(self.capacity)
        assert self.ring.push_many(items) == self.capacity
        self.model.extend(items)

    @invariant()
    def length_agrees(self) -> None:
        if hasattr(self, "ring"):
            assert len(self.ring) == len(self.model)


RingWalk.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestRingWalk = RingWalk.TestCase


@pytest.mark.parametrize("capacity", [0, 1, 3, 6, 1000])
def test_capacity_that_is_no_power_of_two_is_refused(capacity: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        Ring(capacity)


def test_release_of_more_than_was_shown_is_refused() -> None:
    ring = Ring(4)
    ring.push_many([1, 2])
    with pytest.raises(ValueError, match="peek"):
        ring.release(3)
    assert ring.pop_many(4) == [1, 2]


def test_items_beyond_64_bits_are_refused() -> None:
    ring = Ring(2)
    for item in (-1, TWO_TO_64):
        with pytest.raises(TypeError):
            ring.try_push(item)
    assert ring.try_push(TWO_TO_64 - 1)
    assert ring.try_pop() == TWO_TO_64 - 1
