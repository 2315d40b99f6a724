"""Hot warnings are let through once in a while, and the rest is counted."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from qts import telemetry
from qts.telemetry import LogThrottle
from qts.telemetry.log_throttle import MAX_KEYS
from tests.telemetry.log_lines import Lines


class Hand:
    """A clock moved by hand."""

    ns = 0

    def __call__(self) -> int:
        return self.ns


def test_first_is_let_through_and_the_next_is_not() -> None:
    throttle = LogThrottle(Hand())
    assert throttle.every(10, "late") == {"suppressed": 0}
    assert not throttle.every(10, "late")


def test_keys_do_not_share_a_turn() -> None:
    throttle = LogThrottle(Hand())
    assert throttle.every(10, "late")
    assert throttle.every(10, ("late", "005930"))


def test_next_turn_tells_how_many_were_suppressed() -> None:
    hand = Hand()
    throttle = LogThrottle(hand)
    assert [bool(throttle.every(10, "late")) for _ in range(4)] == [True, False, False, False]
    hand.ns += 10_000_000_000
    assert throttle.every(10, "late") == {"suppressed": 3}


@given(steps_ms=st.lists(st.integers(0, 4000), max_size=60))
def test_every_call_is_told_or_counted(steps_ms: list[int]) -> None:
    hand = Hand()
    throttle = LogThrottle(hand)
    told, counted, last_ns = 0, 0, None
    for step in steps_ms:
        hand.ns += step * 1_000_000
        if due := throttle.every(5, "late"):
            assert last_ns is None or hand.ns - last_ns >= 5_000_000_000
            told, counted, last_ns = told + 1, counted + due["suppressed"], hand.ns
    assert told + counted + throttle.take_suppressed().get("late", 0) == len(steps_ms)


def test_number_of_keys_is_bounded() -> None:
    throttle = LogThrottle(Hand())
    for key in range(MAX_KEYS + 1):
        throttle.every(10, key)
    assert throttle.every(10, 0), "the oldest key was forgotten"
    assert not throttle.every(10, MAX_KEYS)


def test_one_of_many_threads_gets_the_turn() -> None:
    throttle = LogThrottle(Hand())
    turns: list[dict[str, int]] = []
    threads = [
        threading.Thread(target=lambda: turns.append(throttle.every(10, "late"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sum(bool(turn) for turn in turns) == 1
    assert throttle.take_suppressed() == {"late": 7}


def test_shutdown_tells_what_was_suppressed_last(lines: Lines) -> None:
    for _ in range(3):
        if due := telemetry.log_every(3600, "ring full"):
            telemetry.logger("test").warning("ring full", **due)
    telemetry.shutdown()
    first, last = lines.parsed()
    assert (first["event"], first["suppressed"]) == ("ring full", 0)
    assert (last["key"], last["suppressed"]) == ("ring full", 2)
