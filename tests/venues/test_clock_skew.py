"""The difference between a venue's clock and ours, measured on its replies."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.domain import ManualClock, SystemClock
from qts.simulators import MarketConfig, UpbitSimulator, UpbitSimulatorConfig
from qts.venues import ClockSkew, RequestPriority
from tests.venues.test_upbit import client_of

START = datetime(2026, 11, 16, 1, tzinfo=UTC)


def record(skew: ClockSkew, clock: ManualClock, venue_s: float, round_trip_s: float = 0.0) -> None:
    """Record a reply that the venue wrote half of the round trip ago, by its clock."""
    written = clock.now() + timedelta(seconds=venue_s - round_trip_s / 2)
    skew.record(
        format_datetime(written, usegmt=True), clock.monotonic_ns() - round(round_trip_s * 1e9)
    )


@given(st.floats(-100, 100), st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1))
def test_it_is_right_to_the_half_second(venue_s: float, replies: list[tuple[float, float]]) -> None:
    clock = ManualClock(START)
    skew = ClockSkew("test", clock)
    for phase, round_trip_s in replies:
        clock.set_wall(START + timedelta(seconds=phase))
        record(skew, clock, venue_s, round_trip_s)
    assert skew.seconds is not None
    assert abs(skew.seconds - venue_s) <= 0.5001
    assert skew.margin >= timedelta(seconds=abs(venue_s) + 1)


def test_replies_that_say_nothing_are_left_out() -> None:
    clock = ManualClock(START)
    skew = ClockSkew("test", clock)
    assert skew.seconds is None
    assert skew.is_synced()
    for date in (None, "", "yesterday", "Mon, 99 Nov 2026 00:00:00 GMT"):
        skew.record(date, clock.monotonic_ns())
    record(skew, clock, 90.0, round_trip_s=1.5)
    assert skew.seconds is None


def test_one_odd_reply_does_not_count_and_a_step_soon_does() -> None:
    clock = ManualClock(START)
    skew = ClockSkew("test", clock)
    for _ in range(15):
        record(skew, clock, 0.0)
    record(skew, clock, 90.0)
    assert skew.is_synced()
    for _ in range(8):
        record(skew, clock, 90.0)
    assert not skew.is_synced()


async def test_a_search_allows_for_a_skew_that_is_over() -> None:
    clock = ManualClock(START)
    skew = ClockSkew("test", clock)
    for venue_s in (-3.0, 1.0, 0.0):
        for _ in range(15):
            record(skew, clock, venue_s)
    assert skew.is_synced()
    assert skew.margin > timedelta(seconds=4)
    await clock.advance(901)
    record(skew, clock, 0.0)
    assert skew.margin < timedelta(seconds=3)


@pytest.mark.parametrize("skew_s", [0.0, -3.7, 90.0])
async def test_a_client_measures_it_on_every_reply(skew_s: float) -> None:
    market = MarketConfig(symbols=5, suspended=0, skew_s=skew_s)
    async with (
        UpbitSimulator(UpbitSimulatorConfig(market=market)) as simulator,
        client_of(simulator) as client,
    ):
        await client.tickers()
        await client.call("GET", "/v1/accounts", (), "default", RequestPriority.ACCOUNT)
        assert client.skew.seconds is not None
        assert abs(client.skew.seconds - skew_s) < 1.1
        client.skew.max_s = 1.5
        assert client.skew.is_synced() == (skew_s == 0.0)
        simulator.set_skew(skew_s + 30)
        for _ in range(9):
            await client.tickers()
        assert abs(client.skew.seconds - skew_s - 30) < 1.1
        now = SystemClock().now() + timedelta(seconds=skew_s + 30)
        venue_now = datetime.fromisoformat(simulator.stats()["market"]["now"])
        assert abs((venue_now - now).total_seconds()) < 3
