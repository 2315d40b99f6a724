"""The circuit breaker: when it opens, what it admits, when it closes."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from qts.cache import BreakerConfig
from qts.cache.call_policy import CircuitBreaker, State
from qts.domain import ManualClock

CONFIG = BreakerConfig(failures=5, open_s=60)


def is_in(breaker: CircuitBreaker, state: State) -> bool:
    return breaker.state == state


def opened(clock: ManualClock) -> CircuitBreaker:
    breaker = CircuitBreaker(CONFIG, clock)
    for _ in range(5):
        assert breaker.try_enter()
        breaker.record_failure()
    return breaker


async def test_five_failures_in_a_row_open_it(clock: ManualClock) -> None:
    breaker = CircuitBreaker(CONFIG, clock)
    for _ in range(4):
        breaker.record_failure()
    breaker.record_success()
    for _ in range(4):
        breaker.record_failure()
    assert is_in(breaker, "closed")
    breaker.record_failure()
    assert is_in(breaker, "open")
    assert breaker.opened == 1
    assert not breaker.try_enter()


async def test_after_its_time_one_call_at_a_time_is_let_through(clock: ManualClock) -> None:
    breaker = opened(clock)
    await clock.advance(59.9)
    assert not breaker.try_enter()
    await clock.advance(0.1)
    assert [breaker.try_enter() for _ in range(3)] == [True, False, False]
    assert is_in(breaker, "half-open")
    breaker.record_success()
    assert is_in(breaker, "closed")


async def test_a_failed_probe_opens_it_for_the_whole_time_again(clock: ManualClock) -> None:
    breaker = opened(clock)
    await clock.advance(60)
    assert breaker.try_enter()
    breaker.record_failure()
    assert is_in(breaker, "open")
    await clock.advance(59.9)
    assert not breaker.try_enter()


@pytest.mark.parametrize("ends", ["record_failure", "release"])
async def test_early_probes_do_not_lengthen_the_time_it_is_open(
    clock: ManualClock, ends: str
) -> None:
    """With a probe every second, calls are admitted after `open_s` all the same."""
    breaker = opened(clock)
    for _ in range(59):
        await clock.advance(1)
        assert breaker.try_enter(early=True)
        getattr(breaker, ends)()
        assert not breaker.try_enter()
    await clock.advance(1)
    assert breaker.try_enter()


async def test_a_background_probe_may_come_early(clock: ManualClock) -> None:
    breaker = opened(clock)
    await clock.advance(1)
    assert breaker.try_enter(early=True)
    assert not breaker.try_enter(early=True)
    breaker.record_success()
    assert breaker.try_enter()
    assert is_in(breaker, "closed")


async def test_a_released_probe_admits_the_next(clock: ManualClock) -> None:
    breaker = opened(clock)
    assert breaker.try_enter(early=True)
    breaker.release()
    assert breaker.try_enter(early=True)


async def test_a_success_from_before_does_not_close_an_open_circuit(clock: ManualClock) -> None:
    breaker = opened(clock)
    breaker.record_success()
    assert is_in(breaker, "open")


class BreakerLaws(RuleBasedStateMachine):
    """While not closed it admits at most one call; open lasts `open_s`, no longer."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.breaker = CircuitBreaker(CONFIG, self.clock)
        self.probes = 0

    @rule(early=st.booleans())
    def enter(self, early: bool) -> None:
        state, since_ns = self.breaker.state, self.clock.monotonic_ns() - self.breaker._opened_ns
        let_in = self.breaker.try_enter(early=early)
        if state == "closed":
            assert let_in
        else:
            self.probes += let_in
        if state == "open":
            assert let_in == (early or since_ns >= CONFIG.open_s * 10**9)

    @rule(end=st.sampled_from(["record_success", "record_failure", "release"]))
    def end(self, end: str) -> None:
        getattr(self.breaker, end)()
        if self.breaker.state != "half-open" or end == "release":
            self.probes = 0

    @rule(seconds=st.floats(0, 100))
    def wait(self, seconds: float) -> None:
        self.clock._move_to(self.clock.monotonic_ns() + round(seconds * 1e9))

    @invariant()
    def one_probe_at_most(self) -> None:
        assert self.probes <= 1


TestBreakerLaws = BreakerLaws.TestCase
TestBreakerLaws.settings = settings(max_examples=60, stateful_step_count=25)
