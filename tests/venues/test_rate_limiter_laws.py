"""Properties: no arrivals, replies, clock jumps or crashes exceed a window at the venue."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from pyrate_limiter import InMemoryBucket, Rate, RateItem

from qts.venues import RateLimitConfig, RateLimiter, RequestPriority, UsageLog
from tests.venues.manual_limiter import SteppedClock, worst_window

LIMITS = RateLimitConfig(per_second=6, per_minute=20, per_day=60)
SPANS = {10**9: 6, 60 * 10**9: 20, 86_400 * 10**9: 60}
GAPS = st.one_of(
    st.just(1.0),
    st.floats(0.0, 0.3),
    st.floats(0.9, 1.1),
    st.sampled_from([1.0, 60.0, 59.999, 3600.0, 43_200.0, 86_400.0]),
)


@dataclass
class Venue:
    """Receives each request at some moment between its grant and its reply."""

    clock: SteppedClock
    arrivals: list[int] = field(default_factory=list)
    open: list[tuple[int, float]] = field(default_factory=list)

    def send(self, lateness: float) -> None:
        self.open.append((self.clock.ns, lateness))

    def reply(self) -> None:
        sent, lateness = self.open.pop(0)
        self.arrivals.append(sent + round((self.clock.ns - sent) * lateness))

    def check(self) -> None:
        arrivals = self.arrivals + [sent for sent, _ in self.open]
        for span, limit in SPANS.items():
            assert worst_window(arrivals, span) <= limit


ASK = st.tuples(st.just("ask"), st.sampled_from(RequestPriority), st.floats(0.0, 1.0))
REPLY = st.tuples(st.just("reply"), st.just(None), st.just(0.0))
WAIT = st.tuples(st.just("wait"), st.just(None), GAPS)
THROTTLE = st.tuples(st.just("throttle"), st.just(None), st.just(0.0))
JUMP = st.tuples(st.just("jump"), st.just(None), st.floats(-1e5, 1e5))
CRASH = st.tuples(st.just("crash"), st.just(None), st.just(0.0))


@settings(max_examples=300)
@given(st.lists(st.one_of(ASK, ASK, ASK, REPLY, REPLY, WAIT, THROTTLE, JUMP), max_size=150))
def test_no_window_at_the_venue_is_ever_above_its_limit(
    steps: list[tuple[str, RequestPriority | None, float]],
) -> None:
    clock = SteppedClock()
    venue = Venue(clock)
    _walk(steps, RateLimiter(LIMITS, clock), venue)
    venue.check()


@settings(max_examples=150)
@given(st.lists(st.one_of(ASK, ASK, ASK, REPLY, REPLY, WAIT, JUMP, CRASH), max_size=150))
def test_all_processes_together_stay_within_every_window(
    steps: list[tuple[str, RequestPriority | None, float]],
) -> None:
    clock = SteppedClock()
    venue = Venue(clock)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "key.usage"
        run: list[tuple[str, RequestPriority | None, float]] = []
        for step in [*steps, ("crash", None, 0.0)]:
            run.append(step)
            if step[0] == "crash":
                usage_log = UsageLog(path, clock, boot="one")
                _walk(run, RateLimiter(LIMITS, clock, usage_log), venue)
                usage_log.close()  # releases the file without another record
                while venue.open:
                    venue.reply()
                run = []
    venue.check()


def _walk(
    steps: list[tuple[str, RequestPriority | None, float]], limiter: RateLimiter, venue: Venue
) -> None:
    for kind, priority, amount in steps:
        if kind == "ask" and priority is not None:
            for _ in range(1 + round(amount * 7)):
                if limiter.try_acquire(priority):
                    venue.send(amount)
        elif kind == "reply" and venue.open:
            while venue.open:
                venue.reply()
                limiter.release()
        elif kind == "wait":
            venue.clock.move(amount)
        elif kind == "throttle":
            limiter.on_throttled()
        elif kind == "jump":
            venue.clock.wall += timedelta(seconds=amount)


@settings(max_examples=200)
@given(st.lists(st.sampled_from([0, 0, 0, 1, 200, 999, 1000, 1001, 59_000, 60_000]), max_size=200))
def test_instant_replies_are_granted_exactly_when_the_oracle_grants_them(
    gaps_ms: list[int],
) -> None:
    oracle = InMemoryBucket([Rate(6, 1000), Rate(20, 60_000), Rate(60, 86_400_000)])
    clock = SteppedClock()
    limiter = RateLimiter(LIMITS, clock)
    for gap in gaps_ms:
        clock.move(gap / 1000)
        granted = limiter.try_acquire(RequestPriority.EXIT)
        assert granted == oracle.put(RateItem("key", clock.ns // 10**6))
        if granted:
            limiter.release()


@settings(max_examples=100)
@given(st.lists(st.tuples(GAPS, st.sampled_from(RequestPriority)), max_size=120))
def test_a_calendar_day_never_holds_more_than_its_limit(
    asks: list[tuple[float, RequestPriority]],
) -> None:
    clock = SteppedClock()
    limiter = RateLimiter(
        RateLimitConfig(per_second=6, per_minute=20, per_day=9, day="calendar"), clock
    )
    days: dict[str, int] = {}
    for gap, priority in asks:
        clock.move(gap)
        if limiter.try_acquire(priority):
            limiter.release()
            day = (clock.wall + timedelta(hours=9)).date().isoformat()
            days[day] = days.get(day, 0) + 1
    assert all(count <= 9 for count in days.values())
