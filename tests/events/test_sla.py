"""Limits of the recent latencies: exceeded, over, exceeded again."""

from __future__ import annotations

import time

import pytest

from qts.domain import ManualClock
from qts.events import EventEngine, LaneAlert
from tests.events.samples import signal, step_all


class Lane:
    """P2 in steps, under a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._alerts: list[LaneAlert] = []
        self.engine = EventEngine(clock=self.clock, on_alert=self._alerts.append)
        self.engine.on("SIGNAL_GENERATED", lambda _: None)

    def handle(self, count: int) -> None:
        for _ in range(count // 500):
            self.engine.publish_many([signal(self.engine) for _ in range(500)])
            step_all(self.engine)

    def handle_slowly(self, count: int) -> None:
        """Handle events that have waited for longer than P2's maximum of a second."""
        self.engine.publish_many([signal(self.engine) for _ in range(count)])
        time.sleep(1.05)
        step_all(self.engine)

    async def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            await self.clock.advance(1)
            self.engine.check()

    def breaches(self) -> list[str]:
        """Return the limits exceeded since the last call, such as `P2 max minute`."""
        texts = [alert.text for alert in self._alerts if alert.kind == "sla"]
        self._alerts.clear()
        return [
            " ".join(each.split()[:2]) + each.partition("last")[2].split(",")[0] for each in texts
        ]


@pytest.fixture
def lane() -> Lane:
    return Lane()


async def test_slow_events_after_many_fast_ones_are_a_breach_each_time(lane: Lane) -> None:
    lane.handle(60_000)
    await lane.pass_time(10)
    assert lane.breaches() == []
    lane.handle_slowly(100)
    await lane.pass_time(1)
    assert lane.breaches() == ["P2 max minute"]
    await lane.pass_time(50)  # the fast ones have left the last minute
    assert lane.breaches() == ["P2 p50 minute", "P2 p95 minute", "P2 p99 minute"]
    await lane.pass_time(30)
    assert lane.engine.status().lanes["P2"].minute.count == 0
    assert lane.engine.status().lanes["P2"].ten_minutes.count == 60_100
    assert lane.engine.status().lanes["P2"].total.count == 60_100
    lane.handle_slowly(100)
    await lane.pass_time(1)
    assert lane.breaches() == [f"P2 {part} minute" for part in ("p50", "p95", "p99", "max")]
    await lane.pass_time(600)
    assert lane.breaches() == []
    assert lane.engine.status().lanes["P2"].ten_minutes.count == 0


async def test_a_breach_is_raised_once_while_it_lasts(lane: Lane) -> None:
    lane.handle_slowly(100)
    await lane.pass_time(20)
    lane.handle_slowly(100)
    await lane.pass_time(20)
    lane.handle_slowly(100)
    await lane.pass_time(20)
    assert len(lane.breaches()) == 4


async def test_a_lane_with_few_events_is_judged_by_ten_minutes(lane: Lane) -> None:
    for _ in range(4):
        lane.handle_slowly(30)
        await lane.pass_time(60)
    assert lane.breaches() == [f"P2 {part} ten minutes" for part in ("p50", "p95", "p99", "max")]


async def test_a_clock_that_jumps_an_hour_leaves_nothing_recent(lane: Lane) -> None:
    lane.handle(500)
    await lane.clock.advance(3600)
    lane.engine.check()
    status = lane.engine.status().lanes["P2"]
    assert (status.minute.count, status.ten_minutes.count, status.total.count) == (0, 0, 500)
