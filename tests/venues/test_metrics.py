"""Prometheus metrics of venue requests: each is counted once, in a fixed set of series."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts import telemetry
from qts.domain import ManualClock, OutcomeUnknownError, SystemClock, UnreachableError
from qts.simulators import KisSimulator, KisSimulatorConfig, MarketConfig, UpbitSimulator
from qts.simulators.control import Fault
from qts.venues import (
    KisQuotes,
    RateLimitConfig,
    RateLimitedError,
    RateLimiter,
    RequestPriority,
    VenueRejectedError,
    connect_kis,
    metrics,
)
from tests.venues.kis import config_for
from tests.venues.test_upbit import SMALL, client_of

REQUESTS = "everbit_upbit_http_requests_total"
ERRORS = "everbit_upbit_http_errors_total"
LEFT = "everbit_upbit_rate_limit_remaining"
REPLIES = "everbit_upbit_http_duration_seconds_count"


class Growth:
    """Increase of the metrics since it was created."""

    def __init__(self) -> None:
        self._before = telemetry.metric_samples()

    def of(self, name: str, **labels: str) -> float:
        return _sum(telemetry.metric_samples(), name, labels) - _sum(self._before, name, labels)


def _sum(
    figures: dict[str, list[tuple[dict[str, str], float]]], name: str, labels: dict[str, str]
) -> float:
    return sum(value for found, value in figures.get(name, []) if labels.items() <= found.items())


async def test_requests_are_counted_by_status_and_timed() -> None:
    growth = Growth()
    async with UpbitSimulator(SMALL) as simulator, client_of(simulator) as client:
        await client.tickers()
        await client.tickers()
        with pytest.raises(VenueRejectedError):
            await client.call("GET", "/v1/ticker", [], "quotes", RequestPriority.NORMAL)
    assert growth.of(REQUESTS, endpoint="ticker/all", method="GET", status="200") == 2
    assert growth.of(REQUESTS) == 3
    assert growth.of(REPLIES, endpoint="ticker/all") == 2
    assert growth.of(ERRORS, endpoint="ticker", **{"class": "rejected"}) == 1
    assert growth.of(ERRORS) == 1
    assert _sum(telemetry.metric_samples(), LEFT, {"group": "ticker"}) == client.remaining["ticker"]


async def test_a_429_and_a_lost_reply_are_different_errors() -> None:
    growth = Growth()
    async with UpbitSimulator(SMALL) as simulator, client_of(simulator) as client:
        simulator.faults.add(Fault(kind="limit", path="/v1/ticker", count=1))
        with pytest.raises(RateLimitedError):
            await client.tickers()
        simulator.faults.add(Fault(kind="drop_reply", path="/v1/", count=2))
        with pytest.raises(UnreachableError):
            await client.tickers()
        with pytest.raises(OutcomeUnknownError):
            await client.call("POST", "/v1/orders", [("a", "b")], "order", RequestPriority.ORDER)
    for kind in ("throttled", "unreachable", "unknown"):
        assert growth.of(ERRORS, **{"class": kind}) == 1
    assert growth.of(REQUESTS, status="429") == 1
    assert growth.of(REQUESTS, status="none") == 2
    assert growth.of(REQUESTS, status="none", endpoint="orders", method="POST") == 1


async def test_a_block_is_counted_and_stops_every_group() -> None:
    growth = Growth()
    async with UpbitSimulator(SMALL) as simulator, client_of(simulator) as client:
        async with aiohttp.ClientSession() as greedy:  # another program at this address
            status = 200
            while status != 418:
                async with greedy.get(simulator.url + "/v1/ticker?markets=KRW-BTC") as reply:
                    status = reply.status
        with pytest.raises(RateLimitedError) as caught:
            await client.tickers()
        assert caught.value.blocked
        assert growth.of(ERRORS, **{"class": "blocked"}) == 1
        for limiter in client.limiters.values():
            assert not limiter.try_acquire(RequestPriority.ORDER)


def test_every_error_class_exists_before_it_happens() -> None:
    kinds = {labels["class"] for labels, _ in telemetry.metric_samples()[ERRORS]}
    assert kinds == set(metrics.FAILURES)


@given(st.text(max_size=30), st.text(max_size=20), st.integers(-1, 2**31))
def test_no_path_status_or_group_adds_a_series(path: str, group: str, status: int) -> None:
    with metrics.UpbitRequestMeter("GET", "/v1/" + path, ManualClock()) as meter:
        meter.status = status
        meter.failed(UnreachableError("lost"))
    metrics.set_upbit_remaining(group, 3)
    figures = telemetry.metric_samples()
    assert {labels["endpoint"] for labels, _ in figures[REQUESTS]} <= set(metrics.UPBIT_ENDPOINTS)
    statuses = {labels["status"] for labels, _ in figures[REQUESTS]}
    assert len(statuses) <= len(metrics.UPBIT_STATUSES) + 6
    assert {labels["group"] for labels, _ in figures[LEFT]} <= metrics.UPBIT_GROUPS | {"other"}


REQUESTED = "qts_venue_requests_total"
TIMED = "qts_venue_request_seconds_count"
BUDGET = "qts_venue_budget_remaining"
RECONNECTS = "qts_venue_stream_reconnects_total"


async def test_requests_to_both_venues_are_counted_by_outcome(tmp_path: Path) -> None:
    growth = Growth()
    async with UpbitSimulator(SMALL) as simulator, client_of(simulator) as client:
        await client.tickers()
        simulator.faults.add(Fault(kind="limit", path="/v1/ticker", count=1))
        with pytest.raises(RateLimitedError):
            await client.tickers()
    async with (
        KisSimulator(KisSimulatorConfig(market=MarketConfig(symbols=60))) as kis,
        connect_kis(config_for(kis.url), tmp_path, SystemClock()) as client_of_kis,
    ):
        quotes = KisQuotes(client_of_kis)
        await quotes.quote("005930", RequestPriority.BURST)
        kis.faults.add(Fault(kind="drop_reply", path="/uapi/", count=1))
        with pytest.raises(UnreachableError):
            await quotes.quote("005930", RequestPriority.BURST)
        assert growth.of(TIMED, venue="kis", endpoint="inquire-price") == 2
    assert growth.of(REQUESTED, venue="upbit", endpoint="ticker/all", outcome="ok") == 1
    assert growth.of(REQUESTED, venue="upbit", outcome="throttled") == 1
    assert growth.of(REQUESTED, venue="kis", endpoint="tokenP", outcome="ok") == 1
    assert growth.of(REQUESTED, venue="kis", endpoint="inquire-price", outcome="ok") == 1
    assert growth.of(REQUESTED, venue="kis", outcome="unreachable") == 1


async def test_a_cancelled_request_is_counted() -> None:
    growth = Growth()
    with (
        contextlib.suppress(asyncio.CancelledError),
        metrics.RequestMeter("kis", "test", ManualClock()),
    ):
        raise asyncio.CancelledError
    assert growth.of(REQUESTED, endpoint="test", outcome="cancelled") == 1


@given(st.lists(st.sampled_from(("take", "release", "wait")), max_size=60))
def test_the_exported_budget_is_what_the_limiter_grants(steps: list[str]) -> None:
    """What is left of the tightest window is what an exit can still take at this moment."""
    clock = ManualClock()
    limits = RateLimitConfig(per_second=4, per_minute=9, per_day=15)
    limiter, held = RateLimiter(limits, clock), 0
    with metrics.exported_budget("test", {"": limiter}):
        for step in steps:
            if step == "take" and limiter.try_acquire(RequestPriority.EXIT):
                held += 1
            elif step == "release" and held:
                limiter.release()
                held -= 1
            elif step == "wait":
                clock._move_to(clock.monotonic_ns() + 700_000_000)
        left = {
            labels["window"]: int(value)
            for labels, value in telemetry.metric_samples()[BUDGET]
            if labels["venue"] == "test"
        }
        granted = 0
        while limiter.try_acquire(RequestPriority.EXIT):
            granted += 1
    assert min(left.values()) == granted
    after = telemetry.metric_samples().get(BUDGET, [])
    assert all(labels["venue"] != "test" for labels, _ in after)
