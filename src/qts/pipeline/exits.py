"""Exits of the stops, from the P0 lane straight to the order submitter, and freezing of positions.

POSITION_FREEZE (P0), or exits that failed ─▶ the gate refuses the symbol at once
                                           ─▶ written to the database until the operator resumes it
"""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import datetime, timedelta
from decimal import Decimal
from uuid import UUID

from msgspec.structs import replace

from qts import telemetry
from qts.database import Database
from qts.domain import (
    STOPS,
    AccountKey,
    Clock,
    IntentType,
    OperationError,
    OrderType,
    QtsError,
    Side,
)
from qts.events import Event, EventType, Payload, Priority
from qts.events import payloads as p
from qts.notify import RecentAlerts
from qts.orders import freeze_position
from qts.outbox import EventBus, uuid7
from qts.pipeline.act import OrderSubmitter
from qts.pipeline.isolated_runner import ProcessPauser
from qts.pipeline.portfolio import Portfolio
from qts.pipeline.risk_snapshot import AccountVersion
from qts.risk import EmergencyOrder, MicroRiskLoop, OrderProposal, exit_quantity

log = telemetry.logger("pipeline")

SIGNAL_TTL_S = 10.0
RETRY_BACKOFF_S = 1.0
MAX_BACKOFF_S = 15.0
VENUE_DUST_CODES = {"under_min_total_ask", "least"}  # of Upbit and of the paper broker
RETRY_INTERVAL_S = 1.0  # of a freeze that is not stored
MAX_FAILED_EXITS = 3  # in a row


class StopExitHandler:
    """P0 handler of stop events; it submits the exit on the event loop."""

    def __init__(
        self,
        submitter: OrderSubmitter,
        micro_risk: MicroRiskLoop,
        portfolio: Portfolio,
        freezer: PositionFreezer,
        pause_strategies: ProcessPauser,
        clock: Clock,
    ) -> None:
        self._submitter = submitter
        self._micro_risk = micro_risk
        self._portfolio = portfolio
        self._freezer = freezer
        self._pause_strategies = pause_strategies
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._rejected: Counter[str] = Counter()  # in a row, by symbol
        self._held_until: asyncio.Event | None = None
        self.count = 0

    def hold_until(self, event: asyncio.Event) -> None:
        """Submit no exit before the event: the stops of a takeover watch unreconciled positions."""
        self._held_until = event

    def __call__(self, event: Event) -> None:
        self._pause_strategies()
        self._loop.call_soon_threadsafe(self._start, event)

    async def close(self) -> None:
        """Wait for exits in flight, at most five seconds; end those that would be repeated."""
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=5)
            for task in left:
                task.cancel()

    def _start(self, event: Event) -> None:
        self.count += 1
        task = asyncio.create_task(self._exit(event))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _exit(self, event: Event) -> None:
        """Submit the exit; repeat what is left of a part of the position until it is sold.

        `leave` is what the stop keeps: an order that follows asks for what is beyond it, neither
        sold nor on its way out. While all of it is, nothing is ordered. Where nothing was placed,
        and for an exit of everything that did not fill, the stop fires again.
        """
        if self._held_until is not None:
            await self._held_until.wait()
            if not self._held(event.payload.symbol):  # it was sold before the takeover
                return
        proposal = self._proposal(event)
        symbol, held = proposal.symbol, self._held(proposal.symbol)
        leave = max(held - proposal.quantity, Decimal(0))
        while reason := await self._try(proposal, leave):
            before, held = held, self._held(symbol)
            failed = reason.startswith("REJECTED") or not (leave or reason.startswith("PENDING"))
            if failed or held > before:  # more was bought: the stop decides again
                self._micro_risk.rearm(symbol, reason)
                return
            if held <= leave:
                self._micro_risk.exited(symbol, proposal.reason)
                return
            now = self._clock.now()
            proposal = replace(
                proposal,
                quantity=held - leave,
                signal_id=uuid7(),
                decided_at=now,
                expires_at=now + timedelta(seconds=SIGNAL_TTL_S),
            )

    async def _try(self, proposal: OrderProposal, leave: Decimal) -> str:
        """Submit once; return "" when it is filled, else the reason, after a pause."""
        symbol = proposal.symbol
        rejected = sold = False
        try:
            done = await self._submitter.submit(proposal, leave=leave)
            reason = "" if done.outcome == "FILLED" else f"{done.outcome} {done.reason}".strip()
            rejected, sold = done.outcome == "REJECTED", bool(done.filled_qty)
        except QtsError as error:
            reason = str(error)
        if reason.startswith("PENDING"):  # no failure: another order sells it
            await self._clock.sleep(RETRY_BACKOFF_S)
            return reason
        if rejected and self._is_dust(symbol, reason):
            if not leave:  # else the stops sell the little that is left with the rest
                self._micro_risk.park(symbol, f"{symbol}: {reason}")
            return ""
        if sold:
            self._freezer.exit_done(symbol)
        else:
            self._freezer.exit_failed(symbol, reason)
        if not reason:
            self._rejected.pop(symbol, None)
            self._micro_risk.exited(symbol, proposal.reason)
            return ""
        log.error("exit not filled; retrying", symbol=symbol, reason=reason)
        await self._clock.sleep(self._backoff_s(symbol, rejected))
        return reason

    def _backoff_s(self, symbol: str, rejected: bool) -> float:
        """Return the pause before a retry; it grows for exits that are rejected every time."""
        self._rejected[symbol] = self._rejected[symbol] + 1 if rejected else 0
        beyond = max(self._rejected[symbol] - MAX_FAILED_EXITS, 0)
        return float(min(RETRY_BACKOFF_S * 2.0**beyond, MAX_BACKOFF_S))

    def _proposal(self, event: Event) -> OrderProposal:
        payload = event.payload
        if isinstance(payload, EmergencyOrder):
            side, reason = Side(payload.side), IntentType(payload.reason)
        elif isinstance(payload, p.TrailingStopHit):
            held = self._micro_risk.stops.position(payload.symbol)
            is_short = held is not None and held["quantity"] < 0
            side, reason = (Side.BUY if is_short else Side.SELL), IntentType.EXIT_TRAIL
        else:
            raise AssertionError(f"{event.event_type} is not an exit")
        now = self._clock.now()
        return OrderProposal(
            strategy_key=STOPS,
            symbol=payload.symbol,
            side=side,
            type=OrderType.MARKET,
            quantity=self._quantity(payload.symbol, payload.qty),
            intent_type=reason,
            signal_id=UUID(event.event_id),
            decided_at=now,
            expires_at=now + timedelta(seconds=SIGNAL_TTL_S),
            reason=f"{reason} at {payload.price:g}",
        )

    def _held(self, symbol: str) -> Decimal:
        held = self._portfolio.positions.get(symbol)
        return abs(held.quantity) if held else Decimal(0)

    def _quantity(self, symbol: str, requested: float) -> Decimal:
        """Return what a stop asked for; all that is held where one of two parts is too small."""
        held = self._held(symbol)
        quantity = exit_quantity(requested, held)
        part = min(quantity, held - quantity)
        return held if part > 0 and self._is_below_minimum(symbol, part) else quantity

    def _is_dust(self, symbol: str, reason: str) -> bool:
        """Return whether an exit was rejected because the position is too small to be sold."""
        codes = set(reason.split())
        is_small = self._is_below_minimum(symbol, self._held(symbol))
        return not codes.isdisjoint(VENUE_DUST_CODES) or ("G_DUST" in codes and is_small)

    def _is_below_minimum(self, symbol: str, quantity: Decimal) -> bool:
        tick = self._portfolio.last_tick(symbol)
        if tick is None:
            return False
        price = Decimal(str(min(tick.price, tick.bid or tick.price)))
        return quantity * price < self._portfolio.instruments[symbol].min_order_value


class PositionFreeze(Payload, frozen=True, kw_only=True):
    """No strategy may enter or exit this symbol until the operator resumes it."""

    symbol: str
    reason: str


POSITION_FREEZE = EventType(
    "POSITION_FREEZE", Priority.P0, PositionFreeze, "symbol", max_process_time_ms=10
)


class PositionFreezer:
    """P0 handler; `pending` holds the symbols that are not yet frozen in the database."""

    def __init__(
        self,
        database: Database,
        bus: EventBus,
        account: AccountKey,
        alerts: RecentAlerts,
        version: AccountVersion,
        clock: Clock,
    ) -> None:
        self._database = database
        self._bus = bus
        self._account = account
        self._alerts = alerts
        self._version = version
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed_exits: Counter[str] = Counter()
        self._written: set[str] = set()
        self.pending: set[str] = set()

    def __call__(self, event: Event) -> None:
        self.pending.add(event.payload.symbol)
        self._loop.call_soon_threadsafe(self._start, event.payload.symbol, event.payload.reason)

    def exit_failed(self, symbol: str, reason: str) -> None:
        """Freeze a position that cannot be sold, so that it does not grow; call on the loop."""
        self._failed_exits[symbol] += 1
        if self._failed_exits[symbol] == MAX_FAILED_EXITS:
            self.pending.add(symbol)
            self._start(symbol, f"{MAX_FAILED_EXITS} exits failed: {reason}")

    def exit_done(self, symbol: str) -> None:
        self._failed_exits.pop(symbol, None)

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)

    def _start(self, symbol: str, reason: str) -> None:
        task = asyncio.create_task(self._write(symbol, reason))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, symbol: str, reason: str) -> None:
        at, was_written = self._clock.now(), symbol in self._written
        if not was_written:
            self._alert(symbol, reason, at)
        while True:
            try:
                is_new = await freeze_position(
                    self._database, self._bus, self._account, symbol, reason, at
                )
            except OperationError as error:  # `pending` keeps the symbol refused meanwhile
                log.warning("freeze not stored; retrying", symbol=symbol, error=str(error))
                await self._clock.sleep(RETRY_INTERVAL_S)
            else:
                if is_new and was_written:  # the operator had resumed it since
                    self._alert(symbol, reason, at)
                self._written.add(symbol)
                self._failed_exits.pop(symbol, None)
                self._version.advance()
                self.pending.discard(symbol)
                return

    def _alert(self, symbol: str, reason: str, at: datetime) -> None:
        log.error("position frozen", symbol=symbol, reason=reason)
        self._alerts.add(at.timestamp(), "critical", f"{symbol}: {reason}", POSITION_FREEZE.name)
