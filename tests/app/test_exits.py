"""Exits that the stops ask for: tried again, and ever more rarely where the answer stays no."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

from qts.app.exits import Exits
from qts.domain import IntentType, MovableClock
from qts.outbox import uuid7
from qts.pipeline import Execution
from qts.risk import EmergencyOrder, Proposal

EXIT = EmergencyOrder(
    symbol="KRW-BTC", side="SELL", qty=0.00001, reason=IntentType.EXIT_STOPLOSS, price=100.0
)


class Stop:
    """Hit again as soon as its exit was not carried out; `outcome` is what comes of each."""

    def __init__(self) -> None:
        self.clock = MovableClock()
        self.outcome = "REJECTED"
        self.asked_s: list[float] = []
        self._exits = Exits(cast(Any, self), cast(Any, self), Mock(), Mock(), self.clock)

    def hit(self) -> None:
        self.asked_s.append(self.clock.monotonic_ns() / 1e9)
        self._exits(cast(Any, SimpleNamespace(event_id=str(uuid7()), payload=EXIT)))

    async def trade(self, proposal: Proposal) -> Execution:
        filled = proposal.quantity if self.outcome == "FILLED" else proposal.quantity * 0
        return Execution(proposal, cast(Any, self.outcome), filled)

    def refused(self, _symbol: str, _why: str) -> None:
        self.hit()

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
