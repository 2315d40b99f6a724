"""Ticks agree with Python's own monotonic clock; the machine's floor is reported."""

from __future__ import annotations

import time
from threading import Thread

import pytest

from qts import _native


def test_ticks_land_on_the_monotonic_timeline() -> None:
    _native.refine_clock()
    errors = []
    for _ in range(50):
        before = time.monotonic_ns()
        moment = _native.ticks_to_ns(_native.ticks())
        after = time.monotonic_ns()
        errors.append(max(before - moment, moment - after, 0))
    assert min(errors) <= 5_000


def test_conversions_are_inverse() -> None:
    now = _native.ticks()
    assert abs(_native.ns_to_ticks(_native.ticks_to_ns(now)) - now) <= 8


def test_ticks_never_go_back() -> None:
    seen = [_native.ticks() for _ in range(10_000)]
    assert seen == sorted(seen)


def test_source_is_named() -> None:
    assert _native.clock_source() in {"tsc", "clock_monotonic"}


def test_stall_floor_reports_what_the_machine_took() -> None:
    floor = _native.stall_floor(0.02)
    assert floor["duration_ns"] >= 19_900_000
    assert 0 <= floor["over_20us"] <= floor["over_1us"]
    assert 0.0 <= floor["share_lost"] <= 1.0
    assert floor["longest_ns"] <= floor["duration_ns"]


def test_stall_floor_lets_other_threads_run() -> None:
    measuring = Thread(target=_native.stall_floor, args=(0.4,))
    measuring.start()
    last, longest_wait = time.monotonic(), 0.0
    while measuring.is_alive():
        now = time.monotonic()
        last, longest_wait = now, max(longest_wait, now - last)
    measuring.join()
    assert longest_wait < 0.3


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), 1e9])
def test_stall_floor_of_no_sensible_length_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="at most 3600"):
        _native.stall_floor(seconds)


def test_ping_pong_measures_a_round_trip() -> None:
    assert 1 <= _native.ping_pong(1_000) < 1e9
    with pytest.raises(ValueError, match="round_trips"):
        _native.ping_pong(0)
