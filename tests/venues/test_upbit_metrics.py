"""Prometheus metrics of Upbit: every request is counted once, in a fixed set of series."""

from __future__ import annotations

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts import telemetry
from qts.domain import ManualClock, OutcomeUnknownError, UnreachableError
from qts.simulators import UpbitSimulator
from qts.simulators.faults import Fault
from qts.venues import RateLimitedError, RequestPriority, VenueRejectedError
from qts.venues.upbit import metrics
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
    assert kinds == set(metrics.KINDS)


@given(st.text(max_size=30), st.text(max_size=20), st.integers(-1, 2**31))
def test_no_path_status_or_group_adds_a_series(path: str, group: str, status: int) -> None:
    timer = metrics.RequestTimer("GET", "/v1/" + path, ManualClock())
    timer.finished(status)
    timer.failed(UnreachableError("lost"))
    metrics.set_remaining(group, 3)
    figures = telemetry.metric_samples()
    assert {labels["endpoint"] for labels, _ in figures[REQUESTS]} <= set(metrics.ENDPOINTS)
    statuses = {labels["status"] for labels, _ in figures[REQUESTS]}
    assert len(statuses) <= len(metrics.STATUSES) + 6
    assert {labels["group"] for labels, _ in figures[LEFT]} <= metrics.GROUPS | {"other"}
