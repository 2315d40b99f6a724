"""`qts dev bench market`: every claim has a row, and the peers build the same bars."""

from __future__ import annotations

import pytest

from benchmarks import market
from qts.router import MarketPlane


def test_ticks_are_those_of_a_market_in_order_of_time() -> None:
    rows = market.make_ticks(10_000)
    assert (rows["at"][1:] > rows["at"][:-1]).all()
    assert rows["at"][-1] - rows["at"][0] < 1.0
    plane = MarketPlane(layout="inline")
    plane.subscribe("s", [f"{number:06d}" for number in range(2_500)], ["1m"])
    plane.push_many(rows)
    assert plane.counts.ticks == 10_000


@pytest.mark.soak
def test_a_quick_run_has_a_row_for_each_claim() -> None:
    effort = market.Effort(rounds=1, ticks=20_000, peer_ticks=100, paced_seconds=1.05)
    rows = [*market.throughput(effort), *market.indicators(effort), *market.latency(effort)]
    goals = [row.goal for row in rows]
    assert "ours >= 5" in goals
    assert "ours >= 1" in goals
    assert "ours < 0.5" in goals
    assert "ours < 5" in goals
    assert all(row.ours > 0 for row in rows)
