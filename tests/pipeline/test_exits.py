"""Exits that the stops ask for: tried again until all is sold, ever more rarely after a no."""

from __future__ import annotations

import itertools
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from qts.domain import IntentType, ManualClock, Position, Tick
from qts.outbox import uuid7
from qts.pipeline import Execution, Portfolio
from qts.pipeline.exits import StopExitHandler
from qts.pipeline.position_sync import PositionSync
from qts.risk import EmergencyOrder, MicroRiskLoop, OrderProposal, StopsConfig, ageless
from tests.instruments import LISTED

SYMBOL = "KRW-BTC"
EXIT = EmergencyOrder(
    symbol=SYMBOL, side="SELL", qty=0.00001, reason=IntentType.EXIT_STOPLOSS, price=100.0
)


class Stop:
    """Hit again as soon as its exit was not carried out; `outcome` is what comes of each."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.outcome = "REJECTED"
        self.asked_s: list[float] = []
        world = Portfolio(self.clock, LISTED)
        self._exits = StopExitHandler(
            cast(Any, self), cast(Any, self), world, Mock(), Mock(), self.clock
        )

    def hit(self) -> None:
        self.asked_s.append(self.clock.monotonic_ns() / 1e9)
        self._exits(cast(Any, SimpleNamespace(event_id=str(uuid7()), payload=EXIT)))

    async def submit(self, proposal: OrderProposal, *, leave: Decimal) -> Execution:  # noqa: ARG002
        filled = proposal.quantity if self.outcome == "FILLED" else proposal.quantity * 0
        return Execution(proposal, cast(Any, self.outcome), filled)

    def rearm(self, _symbol: str, _reason: str) -> None:
        self.hit()

    def exited(self, _symbol: str, _text: str) -> None:
        pass

    async def pauses(self, seconds: float) -> list[float]:
        """Between the tries of the next seconds."""
        del self.asked_s[:-1]
        await self.clock.advance(seconds)
        return [later - earlier for earlier, later in itertools.pairwise(self.asked_s)]


async def test_what_is_declined_again_and_again_is_asked_for_ever_more_rarely() -> None:
    stop = Stop()
    stop.hit()
    assert await stop.pauses(60) == [1, 1, 1, 2, 4, 8, 15, 15]


async def test_what_was_not_answered_is_asked_for_every_second() -> None:
    stop = Stop()
    stop.hit()
    await stop.pauses(60)
    stop.outcome = "TIMEOUT"
    await stop.pauses(15)
    assert await stop.pauses(5) == [1, 1, 1, 1, 1]


async def test_an_exit_that_is_carried_out_is_not_asked_for_again() -> None:
    stop = Stop()
    stop.hit()
    await stop.pauses(60)
    stop.outcome = "FILLED"
    await stop.pauses(15)
    assert await stop.pauses(60) == []
    stop.outcome = "REJECTED"  # another day, another position
    stop.hit()
    assert await stop.pauses(5) == [1, 1, 1, 2]


class Position100:
    """Bought at 100 won, and watched by the real stops; `outcomes` are what comes of its exits."""

    def __init__(self, quantity: str, *outcomes: tuple[str, int]) -> None:
        self.clock = ManualClock()
        self.asked: list[Decimal] = []
        self.resting = Decimal(0)
        self.freezes = Mock()
        self._outcomes = list(outcomes)
        self._world = Portfolio(self.clock, LISTED)
        self._micro = MicroRiskLoop(StopsConfig(), self._published, Mock(), self.clock, ageless)
        self._holding = PositionSync(self._world, self._micro, {}, self.clock)
        self._exits = StopExitHandler(
            cast(Any, self), self._micro, self._world, self.freezes, Mock(), self.clock
        )
        self._hold(Decimal(quantity))

    async def fall(self, price: float, seconds: float = 0.0) -> list[Decimal]:
        """What is asked for at this price, and at the same one when the seconds are over."""
        for pause_s in (0.0, seconds):
            await self.clock.advance(pause_s)
            self._micro.stops.on_tick(SYMBOL, price, self.clock.monotonic_ns() + 1)
        await self.clock.advance(0)
        return self.asked

    async def submit(self, proposal: OrderProposal, *, leave: Decimal) -> Execution:
        """Place what is neither sold nor on its way out; `resting` of an outcome rests."""
        held = self._world.positions[SYMBOL].quantity
        quantity = min(proposal.quantity, held - self.resting - leave)
        if quantity <= 0:
            return Execution(proposal, "PENDING", Decimal(0), "on its way")
        self.asked.append(quantity)
        outcome, filled = self._outcomes.pop(0) if self._outcomes else ("TIMEOUT", 0)
        self.resting += (quantity - filled) if outcome == "TIMEOUT" else Decimal(0)
        self._hold(held - filled)
        return Execution(proposal, cast(Any, outcome), Decimal(filled))

    def _hold(self, quantity: Decimal) -> None:
        self._world.load(Decimal(10**9), [Position(SYMBOL, quantity, Decimal(100))])
        self._holding.push_to_stops()

    def _published(self, _name: str, payload: object) -> None:
        self._exits(cast(Any, SimpleNamespace(event_id=str(uuid7()), payload=payload)))


async def test_the_rest_of_an_exit_that_ended_half_filled_is_asked_for() -> None:
    position = Position100("10", ("PARTIAL", 6), ("FILLED", 4))
    assert await position.fall(97.5, seconds=2) == [10, 4]
    position.freezes.exit_failed.assert_not_called()
    assert position.freezes.exit_done.call_count == 2


async def test_a_half_that_was_declined_is_asked_for_again() -> None:
    position = Position100("10", ("REJECTED", 0), ("FILLED", 5))
    assert await position.fall(98.5, seconds=2) == [5, 5]


async def test_a_half_that_may_still_be_sold_is_not_sold_twice() -> None:
    position = Position100("10", ("TIMEOUT", 0))
    assert await position.fall(98.5, seconds=5) == [5]
    assert await position.fall(97.5) == [5, 5]  # all of it: what is not on its way out


async def test_an_exit_that_rests_is_no_failure_again_and_again() -> None:
    position = Position100("10", ("TIMEOUT", 0), ("FILLED", 10))
    assert await position.fall(97.5, seconds=10) == [10]
    assert position.freezes.exit_failed.call_count == 1  # the one that did not fill in time
    position.resting = Decimal(0)  # cancelled at the venue, nothing was sold
    assert await position.fall(97.5, seconds=2) == [10, 10]


async def test_what_a_cancelled_half_left_is_asked_for_again() -> None:
    position = Position100("10", ("PARTIAL", 2), ("PARTIAL", 1), ("FILLED", 2))
    assert await position.fall(98.5, seconds=5) == [5, 3, 2]
    assert await position.fall(98.5, seconds=30) == [5, 3, 2]


async def test_a_half_that_rested_and_was_cancelled_is_asked_for_again() -> None:
    position = Position100("10", ("TIMEOUT", 0), ("FILLED", 5))
    assert await position.fall(98.5, seconds=5) == [5]
    position.resting = Decimal(0)  # cancelled at the venue, nothing was sold
    assert await position.fall(98.5, seconds=2) == [5, 5]


@pytest.mark.parametrize("held", ["714285714.28571428", "71428571412.12345671", "0.00000003", "7"])
async def test_an_exit_of_everything_is_exactly_everything(held: str) -> None:
    assert await Position100(held).fall(97.5) == [Decimal(held)]


async def test_half_is_a_number_of_lots_and_no_more_than_half() -> None:
    for count in range(1, 400):
        held = Decimal(count * 7919 * 2).scaleb(-8)
        (asked,) = await Position100(str(held)).fall(98.5)
        assert asked == asked.quantize(Decimal("0.00000001"))
        assert held / 2 - Decimal("0.00000002") <= asked <= held / 2


class SmallExit:
    """A position at Upbit whose exits are answered with `reason`; none if it is empty."""

    def __init__(self, quantity: str, price: float, reason: str = "") -> None:
        self.clock = ManualClock()
        self.asked: list[Decimal] = []
        self.codes: list[str] = []
        self.freezes = Mock()
        self._reason = reason
        portfolio = Portfolio(self.clock, LISTED)
        portfolio.load(Decimal(0), [Position(SYMBOL, Decimal(quantity), Decimal(1))])
        portfolio.apply_tick(Tick(SYMBOL, price, 1, price, price, 0.0))
        self.micro_risk = MicroRiskLoop(
            StopsConfig(), Mock(), lambda code, _text: self.codes.append(code), self.clock, ageless
        )
        self._exits = StopExitHandler(
            cast(Any, self), self.micro_risk, portfolio, self.freezes, Mock(), self.clock
        )

    async def hit(self, quantity: float) -> list[Decimal]:
        payload = EmergencyOrder(
            symbol=SYMBOL, side="SELL", qty=quantity, reason=IntentType.EXIT_MAE, price=1.0
        )
        self._exits(cast(Any, SimpleNamespace(event_id=str(uuid7()), payload=payload)))
        await self.clock.advance(3600)
        return self.asked

    async def submit(self, proposal: OrderProposal, *, leave: Decimal) -> Execution:  # noqa: ARG002
        self.asked.append(proposal.quantity)
        if self._reason:
            return Execution(proposal, "REJECTED", Decimal(0), self._reason)
        return Execution(proposal, "FILLED", proposal.quantity)


@pytest.mark.parametrize("reason", ["G_DUST", "under_min_total_ask", "least"])
async def test_what_is_too_small_to_sell_is_parked_and_not_asked_for_again(reason: str) -> None:
    small = SmallExit("1", 4_000, reason)
    assert await small.hit(1) == [1]
    assert (small.micro_risk.parked, small.codes) == ({SYMBOL}, ["GR075"])
    small.freezes.exit_failed.assert_not_called()


@pytest.mark.parametrize(
    ("held", "sold"), [("2", 1), ("1.9", Decimal("1.9")), ("1.5", Decimal("1.5"))]
)
async def test_half_is_sold_only_where_both_halves_can_be(held: str, sold: Decimal) -> None:
    assert await SmallExit(held, 5_000).hit(float(held) / 2) == [sold]


async def test_the_rest_of_an_exit_in_flight_does_not_park_the_position() -> None:
    small = SmallExit("2", 5_000, "G_DUST")  # the gate counted what is already being sold
    await small.hit(2)
    assert small.micro_risk.parked == set()


async def test_an_exit_that_is_filled_is_reported() -> None:
    small = SmallExit("1", 100_000.0)
    assert await small.hit(1.0) == [Decimal(1)]
    assert small.codes == ["FS102"]
