"""Orders of the operator in a run: a command on the bus goes through the gate of every order.

    place   one order
    close   for each symbol: the gate's refusals ─▶ cancel its open orders ─▶ sell what is held

A command may be delivered again after the run that took it died. The orders it stored then have
the signal ids that they would have now: they are read from the ledger, not stored again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from uuid import UUID, uuid5

from qts import telemetry
from qts.database import Database
from qts.domain import (
    MANUAL,
    AccountKey,
    Clock,
    IntentType,
    OperationError,
    OrderType,
    QtsError,
    Side,
)
from qts.orders import (
    CancelStopOrder,
    CarryOutManually,
    ClosePositions,
    ManualCommand,
    ManualOrder,
    ManualRefusal,
    ManualResult,
    ManualState,
    OrderManager,
    OrderRow,
    PlaceOrder,
    end_command,
    intents_of_signals,
    list_positions,
    open_intents,
    order_history,
    start_command,
)
from qts.outbox import TRADE_COMMAND, TRADE_EXIT, Delivery, Dispatcher
from qts.pipeline.act import OrderSubmitter
from qts.pipeline.stop_orders import StopOrders
from qts.risk import OrderProposal, Reason

log = telemetry.logger("pipeline")

MARKET_WAIT_S = 5.0  # for the fills of one order
LIMIT_WAIT_S = 1.0  # a limit order mostly rests
CANCEL_WAIT_S = 8.0
SETTLE_WAIT_S = 20.0  # for an order without an outcome: one that is absent is known to be by then
POLL_S = 0.05
MAX_LEGS = 5  # orders to close one position
_IN_FLIGHT = {"PREPARED", "SENT", "UNKNOWN"}
_STOPPED = {"STOPPED", "SUSPENDED"}
_PENDING = "G_NOT_AN_EXIT"  # its orders that are cancelled first may sell it all


class ManualOrderHandler:
    """Carries out the manual commands of one account."""

    def __init__(
        self,
        database: Database,
        key: AccountKey,
        submitter: OrderSubmitter,
        manager: OrderManager,
        stop_orders: StopOrders,
        clock: Clock,
    ) -> None:
        self._database = database
        self._key = key
        self._submitter = submitter
        self._manager = manager
        self._stop_orders = stop_orders
        self._clock = clock

    def register(self, dispatcher: Dispatcher) -> None:
        for stream in (TRADE_COMMAND, TRADE_EXIT):
            dispatcher.on(stream, CarryOutManually)(self.carry_out)
        dispatcher.on(TRADE_EXIT, CancelStopOrder)(self.cancel_stop_order)

    async def carry_out(self, message: CarryOutManually, delivery: Delivery) -> None:
        delivery.extend(SETTLE_WAIT_S + CANCEL_WAIT_S)
        command = await start_command(self._database, self._key, message.command_id)
        if command is None:
            log.info("manual command ignored; ended or expired", command=str(message.command_id))
            return
        log.warning("manual command started", actor=command.actor, command=str(command.id))
        try:
            if isinstance(command.request, PlaceOrder):
                state, result = await self._place(command, command.request)
            else:
                state, result = await self._close(command, command.request)
        except OperationError:
            raise  # the bus delivers it again
        except QtsError as error:
            state, result = ManualState.FAILED, ManualResult(message=str(error))
        await end_command(self._database, command.id, state, result)
        log.warning("manual command ended", state=state, reason=result.message)

    async def cancel_stop_order(self, message: CancelStopOrder, _delivery: Delivery) -> None:
        """Cancel a stop order, or the order that it became."""
        id_ = message.stop_order_id
        if not await self._stop_orders.cancel_manually(id_):
            for intent in await intents_of_signals(self._database, self._key, [id_]):
                await self._manager.cancel(intent)

    # --- place ----------------------------------------------------------------------------------

    async def _place(
        self, command: ManualCommand, request: PlaceOrder
    ) -> tuple[ManualState, ManualResult]:
        signal_id, refusals = command.id, tuple[Reason, ...]()
        if not await self._orders_of([signal_id]):
            if command.is_late:
                text = "the run that took it ended before it stored the order; nothing was sent"
                return ManualState.FAILED, ManualResult(message=text)
            type_ = OrderType.MARKET if request.price is None else OrderType.LIMIT
            proposal = OrderProposal(
                strategy_key=MANUAL,
                symbol=request.symbol,
                side=request.side,
                type=type_,
                quantity=request.quantity,
                price=request.price,
                intent_type=await self._intent_type(request),
                signal_id=signal_id,
                decided_at=self._clock.now(),
                expires_at=command.expires_at,
                reason=_reason(command),
            )
            wait_s = MARKET_WAIT_S if type_ is OrderType.MARKET else LIMIT_WAIT_S
            refusals = (await self._submitter.submit(proposal, wait_s)).refusals
        orders = await self._settled([signal_id])
        if not orders:
            return ManualState.REFUSED, _refused({request.symbol: refusals})
        (order,) = orders
        if order.outcome in ("FILLED", "OPEN"):
            state = ManualState.DONE
        else:
            state = ManualState.REFUSED if order.outcome in _STOPPED else ManualState.FAILED
        return state, ManualResult(message=_order_text(order), orders=orders)

    async def _intent_type(self, request: PlaceOrder) -> IntentType:
        """Return EXIT_MANUAL for an order that only reduces the position, else ENTRY."""
        held = (await self._held()).get(request.symbol, Decimal(0))
        reduces = held * request.side.sign < 0 and request.quantity <= abs(held)
        return IntentType.EXIT_MANUAL if reduces else IntentType.ENTRY

    # --- close ----------------------------------------------------------------------------------

    async def _close(
        self, command: ManualCommand, request: ClosePositions
    ) -> tuple[ManualState, ManualResult]:
        held = await self._held(request.symbol)
        refused, intents = dict[str, tuple[Reason, ...]](), list[UUID]()
        if not command.is_late:
            refused = await self._refusals(command, held)
            kept = [each for each in refused if request.symbol or not _is_dust(refused[each])]
            if kept and len(refused) == len(held):
                return ManualState.REFUSED, _refused(refused)
            intents = await self._cancel(request.symbol, kept)
            held |= await self._held(request.symbol)  # an order may fill while it is cancelled
            selling = [each for each in held if each not in refused]
            found = await asyncio.gather(*(self._sell(command, each) for each in selling))
            later = zip(selling, found, strict=True)
            refused |= {symbol: reasons for symbol, reasons in later if reasons}
        symbols = {*held, *await self._sold(command)}
        return await self._closed(command, symbols, intents, refused)

    async def _closed(
        self,
        command: ManualCommand,
        symbols: set[str],
        intents: list[UUID],
        refused: dict[str, tuple[Reason, ...]],
    ) -> tuple[ManualState, ManualResult]:
        """Return what the ledger says after a command; dust cannot be sold and is no failure."""
        legs = [_leg(command, symbol, n) for symbol in symbols for n in range(MAX_LEGS)]
        orders = await self._settled(legs)
        left = {name: size for name, size in (await self._held()).items() if name in symbols}
        still_open = await self._still_open(intents)
        cancelled = [each for each in intents if each not in still_open]
        resting = len(still_open)
        result = ManualResult(
            message=_close_text(orders, len(cancelled), resting, left, refused),
            orders=orders,
            cancelled=cancelled,
            refusals=_refusals(refused),
        )
        failed = resting or any(not _is_dust(refused.get(each, ())) for each in left)
        return (ManualState.FAILED if failed else ManualState.DONE), result

    async def _refusals(
        self, command: ManualCommand, held: dict[str, Decimal]
    ) -> dict[str, tuple[Reason, ...]]:
        """Return what the gate would refuse: then the open orders of the symbol stay, too."""
        found = {}
        for symbol, quantity in held.items():
            proposal = self._exit(command, symbol, quantity, 0)
            reasons = await self._submitter.refusals_of(proposal)
            if reasons := tuple(each for each in reasons if each.code != _PENDING):
                found[symbol] = reasons
        return found

    async def _cancel(self, symbol: str | None, kept: Sequence[str]) -> list[UUID]:
        """Cancel open orders but for `kept` symbols, wait for their end; return their intents."""
        intents = [
            intent
            for intent, name in await open_intents(self._database, self._key, symbol)
            if name not in kept
        ]
        for intent in intents:
            await self._manager.cancel(intent)
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_WAIT_S):
                while await self._still_open(intents):
                    await self._clock.sleep(POLL_S)
        return intents

    async def _still_open(self, intents: list[UUID]) -> set[UUID]:
        """Return those of the intents that are open; a stop order may have become another."""
        became = await intents_of_signals(self._database, self._key, intents)
        return {*intents, *became} & {
            each for each, _ in await open_intents(self._database, self._key)
        }

    async def _sell(self, command: ManualCommand, symbol: str) -> tuple[Reason, ...]:
        """Sell what is held until nothing is left; return why the gate refused, if it did."""
        leg = 0
        while leg < MAX_LEGS and self._clock.now() < command.expires_at:
            held = (await self._held()).get(symbol)
            if held is None:
                return ()
            proposal = self._exit(command, symbol, held, leg)
            done = await self._submitter.submit(proposal, MARKET_WAIT_S, leave=Decimal(0))
            if done.outcome == "PENDING":  # another order sells it
                await self._clock.sleep(10 * POLL_S)
                continue
            leg += 1
            if done.refusals and done.reason != "G_REPEATED":
                return done.refusals
            if done.outcome not in ("FILLED", "PARTIAL") and done.reason != "G_REPEATED":
                return ()
        return ()

    def _exit(self, command: ManualCommand, symbol: str, held: Decimal, leg: int) -> OrderProposal:
        return OrderProposal(
            strategy_key=MANUAL,
            symbol=symbol,
            side=Side.SELL if held > 0 else Side.BUY,
            type=OrderType.MARKET,
            quantity=abs(held),
            intent_type=IntentType.EXIT_MANUAL,
            signal_id=_leg(command, symbol, leg),
            decided_at=self._clock.now(),
            expires_at=command.expires_at,
            reason=_reason(command),
        )

    # --- ledger ---------------------------------------------------------------------------------

    async def _held(self, symbol: str | None = None) -> dict[str, Decimal]:
        """Return the positions, or that of one symbol."""
        rows = await list_positions(self._database, self._key)
        held = {row.symbol: row.quantity for row in rows if row.quantity}
        return {name: size for name, size in held.items() if symbol in (None, name)}

    async def _sold(self, command: ManualCommand) -> list[str]:
        """Return the symbols that may have orders of a command of an earlier run."""
        if not command.is_repeated:
            return []
        return [row.symbol for row in await list_positions(self._database, self._key)]

    async def _orders_of(self, signal_ids: list[UUID]) -> list[ManualOrder]:
        intents = await intents_of_signals(self._database, self._key, signal_ids)
        return [_order((await order_history(self._database, each)).order) for each in intents]

    async def _settled(self, signal_ids: list[UUID]) -> list[ManualOrder]:
        """Return the orders of signals once none is in flight, at the latest after a wait."""
        orders = await self._orders_of(signal_ids)
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_WAIT_S):
                while any(each.outcome in _IN_FLIGHT for each in orders):
                    await self._clock.sleep(POLL_S)
                    orders = await self._orders_of(signal_ids)
        return orders


def _leg(command: ManualCommand, symbol: str, number: int) -> UUID:
    return uuid5(command.id, f"{symbol} {number}")


def _reason(command: ManualCommand) -> str:
    return f"{command.actor}: {command.reason}" if command.reason else command.actor


def _order(row: OrderRow) -> ManualOrder:
    if row.filled >= row.quantity:
        outcome = "FILLED"
    elif row.attempt_state is None:
        outcome = "STOPPED"
    elif row.attempt_state == "ACKED":
        outcome = row.order_state or "OPEN"
    else:
        outcome = row.attempt_state
    return ManualOrder(
        intent_id=row.intent_id,
        symbol=row.symbol,
        side=row.side,
        quantity=row.quantity,
        filled=row.filled,
        outcome=outcome,
        reason=" ".join(filter(None, (row.reason_code, row.error))),
    )


def _order_text(order: ManualOrder) -> str:
    what = f"{order.side} {order.quantity.normalize():f} {order.symbol}"
    filled = f"{order.filled.normalize():f}"
    match order.outcome:
        case "FILLED":
            return f"{what} filled"
        case "OPEN":
            return f"{what} is open at the venue, {filled} filled"
        case "UNKNOWN":
            look = f"see qts orders show {order.intent_id}"
            return f"{what} has an unknown outcome: do not order it again, QTS looks it up, {look}"
        case outcome:
            reason = f": {order.reason}" if order.reason else ""
            return f"{what} {outcome}, {filled} filled{reason}"


def _close_text(
    orders: list[ManualOrder],
    cancelled: int,
    resting: int,
    left: dict[str, Decimal],
    refused: dict[str, tuple[Reason, ...]],
) -> str:
    parts = [_order_text(each) for each in orders]
    if cancelled:
        parts.append(f"{cancelled} open order{'s'[: cancelled != 1]} cancelled")
    if resting:
        parts.append(f"{resting} still open at the venue")
    if left:
        names = ", ".join(f"{size.normalize():f} {name}" for name, size in left.items())
        parts.append(f"still held: {names}")
    parts += [f"{each.symbol} refused: {each.code} {each.text}" for each in _refusals(refused)]
    return "; ".join(parts) or "nothing is held and no order is open"


def _is_dust(reasons: tuple[Reason, ...]) -> bool:
    return {each.code for each in reasons} == {"G_DUST"}


def _refusals(refused: dict[str, tuple[Reason, ...]]) -> list[ManualRefusal]:
    return [
        ManualRefusal(symbol, each.code, each.text)
        for symbol, reasons in refused.items()
        for each in reasons
    ]


def _refused(refused: dict[str, tuple[Reason, ...]]) -> ManualResult:
    """Return the result of a command of which nothing was done."""
    found = _refusals(refused)
    texts = [*dict.fromkeys(f"{each.code} {each.text}" for each in found)]
    if any(each.code == "G_KILL_SWITCH" for each in found):
        texts.append("while it is on, no order leaves, a close included: qts kill off first")
    return ManualResult(message=f"refused, nothing was sent: {'; '.join(texts)}", refusals=found)
