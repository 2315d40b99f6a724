"""Suite of a broker over a network: lost replies, repeated, reordered and missing reports."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import pytest

from qts.brokers import StreamGap
from qts.domain import OutcomeUnknownError
from qts.testing.broker import NOTHING_KNOWN, BrokerMarket, BrokerSuite, ReportListener
from qts.venues import RateLimitedError

FaultKind = Literal[
    "drop_reply",  # the order is accepted, and the reply lost
    "unknown",  # accepted, and answered with an error that says nothing
    "cut",  # accepted, and the connection breaks within the reply
    "slow",  # the reply comes after every timeout
    "drop_request",  # the order never arrives
    "error",  # not accepted, and answered with an error that says nothing
    "limit",  # refused for too many requests
    "duplicate_fills",
    "reorder_fills",
    "lose_fills",
]
"""How a connection can be disturbed."""


class NetworkedMarket(BrokerMarket):
    """A market whose connection can be disturbed."""

    @abstractmethod
    def inject_fault(self, kind: FaultKind, count: int | None = 1) -> None:
        """Disturb the next `count` orders or reports of fills; None: all of them."""

    @abstractmethod
    def drop_streams(self) -> object:
        """Cut every stream of reports; a new one can be opened."""


class NetworkedBrokerSuite(BrokerSuite):
    """BrokerSuite, and what a network does to orders and reports."""

    @pytest.fixture
    def market(self) -> NetworkedMarket:
        raise NotImplementedError("define a fixture `market` that yields a NetworkedMarket")

    @pytest.mark.parametrize("fault", ["drop_reply", "unknown", "cut"])
    async def test_an_order_whose_reply_was_lost_is_found(
        self, market: NetworkedMarket, fault: FaultKind
    ) -> None:
        request, sent_at = market.resting(), market.clock.now()
        market.inject_fault(fault)
        with pytest.raises(OutcomeUnknownError):
            await market.broker.place(request)
        (order_id,) = await market.record()  # it was accepted, once
        await market.go()
        found = await market.broker.find_order(request, sent_at, NOTHING_KNOWN)
        assert [order.broker_order_id for order in found.candidates] == [order_id]

    async def test_a_late_reply_leaves_the_outcome_unknown(self, market: NetworkedMarket) -> None:
        request, sent_at = market.resting(), market.clock.now()
        market.inject_fault("slow")
        with pytest.raises(OutcomeUnknownError):
            await market.broker.place(request)
        found = await market.broker.find_order(request, sent_at, NOTHING_KNOWN)
        assert {order.broker_order_id for order in found.candidates} == set(await market.record())

    @pytest.mark.parametrize("fault", ["drop_request", "error"])
    async def test_an_order_that_was_never_accepted_is_not_found(
        self, market: NetworkedMarket, fault: FaultKind
    ) -> None:
        request, sent_at = market.resting(), market.clock.now()
        market.inject_fault(fault)
        with pytest.raises(OutcomeUnknownError):
            await market.broker.place(request)
        assert await market.record() == {}
        found = await market.broker.find_order(request, sent_at, NOTHING_KNOWN)
        assert found.candidates == ()

    async def test_a_rate_limited_order_was_not_placed_and_can_be_placed_again(
        self, market: NetworkedMarket
    ) -> None:
        market.inject_fault("limit")
        with pytest.raises(RateLimitedError):
            await market.broker.place(market.resting())
        assert await market.record() == {}
        await market.broker.place(market.resting())
        assert len(await market.record()) == 1

    async def test_an_order_is_sent_once_whatever_happens(self, market: NetworkedMarket) -> None:
        """Three lost replies in a row: three orders at the venue, one for each call, never more."""
        market.inject_fault("drop_reply", count=3)
        for calls in (1, 2, 3):
            with pytest.raises(OutcomeUnknownError):
                await market.broker.place(market.resting())
            assert len(await market.record()) == calls

    @pytest.mark.parametrize("fault", ["duplicate_fills", "reorder_fills"])
    async def test_duplicate_or_reordered_fills_count_once(
        self, market: NetworkedMarket, fault: FaultKind
    ) -> None:
        market.inject_fault(fault, count=4)
        async with ReportListener.on(market.broker) as listener:
            order_id = await market.broker.place(market.request(quantity=market.more_than_shown()))
            await market.go()
            filled = (await market.record())[order_id].filled
            await listener.until(lambda: listener.filled() == filled)
            await market.broker.place(market.request())
            await market.go()
            await listener.until(lambda: listener.filled() == filled + market.quantity)
        listed = await market.broker.fills(market.began)
        assert {fill.trade_id for fill in listed} == {fill.trade_id for fill in listener.fills}
        assert sum(fill.quantity for fill in listed) == filled + market.quantity

    async def test_fills_missing_from_the_stream_are_listed(self, market: NetworkedMarket) -> None:
        market.inject_fault("lose_fills", count=None)
        async with ReportListener.on(market.broker) as listener:
            order_id = await market.broker.place(market.request())
            await market.go()
            fills = await market.broker.fills(market.began)
            assert {fill.broker_order_id for fill in fills} == {order_id}
            assert sum(fill.quantity for fill in fills) == market.quantity
            assert not any(
                fill.trade_id not in {f.trade_id for f in fills} for fill in listener.fills
            )

    async def test_an_interrupted_stream_reports_a_gap_and_resumes(
        self, market: NetworkedMarket
    ) -> None:
        async with ReportListener.on(market.broker) as listener:
            market.drop_streams()
            await market.broker.place(market.request())

            def is_back() -> bool:
                return sum(isinstance(report, StreamGap) for report in listener.reports) >= 2

            for _ in range(200):
                await market.go()
                if is_back():
                    break
            await listener.until(is_back)
            missed = await market.broker.fills(market.began)
            assert sum(fill.quantity for fill in missed) == market.quantity
            order_id = await market.broker.place(market.request())
            await market.go()
            await listener.until(
                lambda: any(fill.broker_order_id == order_id for fill in listener.fills)
            )
