"""Log throttling: one line per key and period, the rest counted."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from qts import telemetry
from qts.telemetry import LogThrottle
from qts.telemetry.logs import MAX_KEYS
from tests.telemetry.log_lines import Lines


class FakeTime:
    """Monotonic clock that a test sets."""

    ns = 0

    def __call__(self) -> int:
        return self.ns


def test_first_is_let_through_and_the_next_is_not() -> None:
    throttle = LogThrottle(FakeTime())
    assert throttle.every(10, "late") == {"suppressed": 0}
    assert not throttle.every(10, "late")


def test_keys_are_independent() -> None:
    throttle = LogThrottle(FakeTime())
    assert throttle.every(10, "late")
    assert throttle.every(10, ("late", "005930"))


def test_next_line_reports_how_many_were_suppressed() -> None:
    clock = FakeTime()
    throttle = LogThrottle(clock)
    assert [bool(throttle.every(10, "late")) for _ in range(4)] == [True, False, False, False]
    clock.ns += 10_000_000_000
    assert throttle.every(10, "late") == {"suppressed": 3}


@given(steps_ms=st.lists(st.integers(0, 4000), max_size=60))
def test_every_call_is_logged_or_counted(steps_ms: list[int]) -> None:
    clock = FakeTime()
    throttle = LogThrottle(clock)
    logged, counted, last_ns = 0, 0, None
    for step in steps_ms:
        clock.ns += step * 1_000_000
        if due := throttle.every(5, "late"):
            assert last_ns is None or clock.ns - last_ns >= 5_000_000_000
            logged, counted, last_ns = logged + 1, counted + due["suppressed"], clock.ns
    assert logged + counted + throttle.take_suppressed().get("late", 0) == len(steps_ms)


def test_number_of_keys_is_bounded() -> None:
    throttle = LogThrottle(FakeTime())
    for key in range(MAX_KEYS + 1):
        throttle.every(10, key)
    assert throttle.every(10, 0), "the oldest key was dropped"
    assert not throttle.every(10, MAX_KEYS)


def test_one_of_many_threads_logs() -> None:
    throttle = LogThrottle(FakeTime())
    results: list[dict[str, int]] = []
    threads = [
        threading.Thread(target=lambda: results.append(throttle.every(10, "late")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sum(map(bool, results)) == 1
    assert throttle.take_suppressed() == {"late": 7}


def test_shutdown_reports_suppressed_lines(lines: Lines) -> None:
    for _ in range(3):
        if due := telemetry.log_every(3600, "ring full"):
            telemetry.logger("test").warning("ring full", **due)
    telemetry.shutdown()
    first, last = lines.parsed()
    assert (first["event"], first["suppressed"]) == ("ring full", 0)
    assert (last["key"], last["suppressed"]) == ("ring full", 2)
