"""Exits that the stops ask for: from the P0 lane to the desk, past every strategy."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from decimal import ROUND_DOWN, Decimal
from uuid import UUID

from qts import telemetry
from qts.domain import Clock, IntentType, OrderType, QtsError, Side
from qts.events import Event
from qts.events import payloads as p
from qts.pipeline.act import OrderSubmitter
from qts.pipeline.freezes import EXITS, PositionFreezer
from qts.pipeline.isolated_runner import ProcessPauser
from qts.pipeline.portfolio import Portfolio
from qts.risk import EmergencyOrder, MicroRiskLoop, OrderProposal

log = telemetry.logger("app")

KEY = "risk"
LIFE_S = 10.0
AGAIN_S = 1.0
LONGEST_S = 15.0  # between two tries of what is declined again and again
_LEAST = Decimal("0.00000001")  # of anything that is traded


class StopExitHandler:
    """A handler of the P0 lane; the order itself is made on the loop."""

    def __init__(
        self,
        trader: OrderSubmitter,
        micro: MicroRiskLoop,
        world: Portfolio,
        freezes: PositionFreezer,
        stillness: ProcessPauser,
        clock: Clock,
    ) -> None:
        self._trader = trader
        self._hold_still = stillness
        self._micro = micro
        self._world = world
        self._freezes = freezes
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._declined: Counter[str] = Counter()
        self.count = 0

    def __call__(self, event: Event) -> None:
        self._hold_still()
        self._loop.call_soon_threadsafe(self._start, event)

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)

    def _start(self, event: Event) -> None:
        self.count += 1
        task = asyncio.create_task(self._leave(event))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _leave(self, event: Event) -> None:
        proposal = self._proposal(event)
        symbol = proposal.symbol
        is_part = proposal.quantity < self._held(symbol)
        declined = sold = may_last = False
        try:
            done = await self._trader.submit(proposal)
            why = "" if done.outcome == "FILLED" else f"{done.outcome} {done.reason}".strip()
            declined, sold = done.outcome == "REJECTED", bool(done.filled_qty)
            may_last = not declined
        except QtsError as error:
            why = str(error)
        if sold:
            self._freezes.exit_done(symbol)
        else:
            self._freezes.exit_failed(symbol, why)
        if not why:
            self._declined.pop(symbol, None)
            return
        log.error("an exit was not carried out", symbol=symbol, reason=why)
        await self._clock.sleep(self._pause_s(symbol, declined))
        # Of all that is held the gate lets no second exit pass while one lasts; a second half it
        # would let pass.
        if not (is_part and may_last):
            self._micro.rearm(symbol, why)

    def _pause_s(self, symbol: str, declined: bool) -> float:
        """What no venue takes (too little to be sold, say) is not asked for every second."""
        self._declined[symbol] = self._declined[symbol] + 1 if declined else 0
        beyond = max(self._declined[symbol] - EXITS, 0)
        return min(AGAIN_S * 2.0**beyond, LONGEST_S)

    def _proposal(self, event: Event) -> OrderProposal:
        payload = event.payload
        if isinstance(payload, EmergencyOrder):
            side, reason = Side(payload.side), IntentType(payload.reason)
        elif isinstance(payload, p.TrailingStopHit):
            held = self._micro.stops.held(payload.symbol)
            is_short = held is not None and held["quantity"] < 0
            side, reason = (Side.BUY if is_short else Side.SELL), IntentType.EXIT_TRAIL
        else:
            raise AssertionError(f"{event.event_type} is no exit")
        now = self._clock.now()
        return OrderProposal(
            strategy_key=KEY,
            symbol=payload.symbol,
            side=side,
            type=OrderType.MARKET,
            quantity=self._quantity(payload.symbol, payload.qty),
            intent_type=reason,
            signal_id=UUID(event.event_id),
            decided_at=now,
            expires_at=now + timedelta(seconds=LIFE_S),
            reason=f"{reason} at {payload.price:g}",
        )

    def _held(self, symbol: str) -> Decimal:
        held = self._world.positions.get(symbol)
        return abs(held.quantity) if held else Decimal(0)

    def _quantity(self, symbol: str, asked: float) -> Decimal:
        """The stops count in doubles; what is sold is exact, and never more than is held."""
        held = self._held(symbol)
        if float(held) == asked:
            return held
        quantity = Decimal(str(asked)).quantize(_LEAST, ROUND_DOWN).normalize() + 0
        return min(quantity, held) if held else quantity
