"""`qts dev verify roles`: every tick of the feed process arrives, and is measured."""

from __future__ import annotations

from qts.verify import measure_role_ticks
from qts.verify.message_speed import LatencyStats


async def test_ticks_of_a_feed_process_are_measured() -> None:
    said: list[str] = []
    report = await measure_role_ticks(0.5, 1000, said.append)
    assert said == ["1,000 ticks a second for 0.5 s"]
    assert report.frames_missed == 0
    assert report.received_ms.count > 0
    assert report.on_tick_ms.count > 0
    assert 0 < report.received_ms.p50 <= report.received_ms.p99 <= report.received_ms.max
    assert report.on_tick_ms.p50 >= report.received_ms.p50


def test_latencies_are_in_the_unit_of_their_values() -> None:
    assert LatencyStats.of([]) == LatencyStats(0, 0.0, 0.0, 0.0)
    assert LatencyStats.of([1.0] * 99 + [500.0]) == LatencyStats(100, 1.0, 5.99, 500.0)
