"""Holdings that QTS did not buy: the baseline of an account, and their adoption.

    holding at the venue = position (from our fills) + baseline (everything else)

    first reconciliation ─▶ baseline, reported once (GR041)
    traded outside QTS   ─▶ the baseline follows, in a symbol that QTS does not trade
                         ─▶ a mismatch, in a symbol that QTS holds or has traded lately
    adopt ─▶ an external fill at cost: from the baseline into the position
    accept ─▶ the baseline takes a mismatch over

No strategy and no stop sees the baseline: it is in no position.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal

import msgspec

from qts import telemetry
from qts.database import Connection, Database
from qts.domain import (
    Account,
    AccountKey,
    Clock,
    Fill,
    Holding,
    RefusedError,
    Side,
    SystemClock,
    check_name,
)
from qts.orders.context import ExecutionContext
from qts.orders.ledger import Ledger
from qts.orders.ledger_values import SQL, ZERO, PositionMismatch
from qts.outbox import EventBus, uuid7
from qts.risk import StopRecord, load_stop_records, save_stop_records

LEDGER_CHANNEL = "qts_ledger"  # notified of changes by other processes than the running QTS
TRADED_FOR = timedelta(days=30)  # after its last order a symbol counts as traded by QTS

log = telemetry.logger("orders")


class BaselineHolding(msgspec.Struct, frozen=True, kw_only=True):
    """Holding of an account that QTS did not buy."""

    broker: str
    account: str
    symbol: str
    quantity: Decimal
    average_price: Decimal  # 0: the venue does not know it
    seen_at: datetime


async def list_baseline(database: Database, key: AccountKey | None = None) -> list[BaselineHolding]:
    """Return the baseline of an account, or of all."""
    rows = await database.fetch(SQL.baseline, *(key or (None, None)))
    return [
        BaselineHolding(
            broker=row["broker"],
            account=row["account"],
            symbol=row["symbol"],
            quantity=row["quantity"],
            average_price=row["average_price"],
            seen_at=row["seen_at"],
        )
        for row in rows
    ]


async def load_baseline(database: Database, key: AccountKey) -> dict[str, Decimal]:
    """Return the quantity of each symbol in the baseline."""
    return {row["symbol"]: row["quantity"] for row in await database.fetch(SQL.baseline, *key)}


async def follow_baseline(
    context: ExecutionContext, account: Account, mismatches: Sequence[PositionMismatch]
) -> tuple[PositionMismatch, ...]:
    """Take mismatches of symbols that QTS does not trade into the baseline; return the others."""
    key, now = context.broker.key, context.clock.now()
    async with context.database.transaction() as tx:
        is_first = await tx.execute(SQL.mark_baseline, *key, now) == "INSERT 0 1"
        symbols = [each.symbol for each in mismatches]
        rows = await tx.fetch(SQL.traded_symbols, *key, symbols, TRADED_FOR)
        traded = {row["symbol"] for row in rows}
        followed = [each for each in mismatches if each.symbol not in traded]
        held = {holding.symbol: holding for holding in account.holdings}
        for each in followed:
            await _set_baseline(tx, key, each.symbol, held.get(each.symbol), now)
    for each in followed:
        log.warning(
            "holding outside QTS; left alone" if each.venue else "holding outside QTS is gone",
            symbol=each.symbol,
            before=str(each.ours),
            now=str(each.venue),
        )
    if is_first and followed:
        names = ", ".join(f"{each.venue.normalize():f} {each.symbol}" for each in followed)
        await context.safety.raise_code("GR041", names)
    return tuple(each for each in mismatches if each.symbol in traded)


async def accept_holding(
    database: Database, key: AccountKey, symbol: str, clock: Clock | None = None
) -> Decimal:
    """Count what differs in a symbol as held outside QTS; return the new baseline of it.

    The holding is that of the last reconciliation.
    """
    async with database.transaction() as tx:
        row = await tx.fetchrow(SQL.last_holdings, *key)
        if row is None:
            raise RefusedError(f"{key.broker} was never reconciled; start QTS first")
        holdings = msgspec.convert(row["holdings"], list[Holding], strict=False)
        held = next((each for each in holdings if each.symbol == symbol), None)
        position = await tx.fetchrow(SQL.get_position, *key, symbol)
        ours = position["quantity"] if position is not None else ZERO
        left = (held.quantity if held is not None else ZERO) - ours
        if left < 0:
            less = f"{-left.normalize():f}"
            raise RefusedError(
                f"{key.broker} holds {less} of {symbol} less than the position; reduce it with"
                f" qts positions adopt {symbol} -{less} --price PRICE --broker {key.broker}"
            )
        average = held.average_price if held is not None else ZERO
        rest = Holding(symbol=symbol, quantity=left, average_price=average)
        await _set_baseline(tx, key, symbol, rest, (clock or SystemClock()).now())
        await tx.execute("SELECT pg_notify($1, $2)", LEDGER_CHANNEL, symbol)
    return left


async def adopt_holding(
    database: Database,
    bus: EventBus,
    key: AccountKey,
    change: Fill | str,
    *,
    stops: bool = False,
    clock: Clock | None = None,
) -> StopRecord | None:
    """Add a holding, or the loss of one, to our position as an external fill.

    `change` is the fill (its ids are created here; what it adds leaves the baseline), or a symbol,
    whose whole baseline is adopted at its cost. With `stops` the stops watch the position from the
    next price on: what is under water is not sold at once. Without, no stop watches it. Return what
    the stops do from now on, where that changed.
    """
    at = (clock or SystemClock()).now()
    symbol = change if isinstance(change, str) else change.symbol
    async with database.transaction() as tx:
        before = await tx.fetchrow(SQL.lock_position, *key, symbol, False)
        if before is None:
            raise AssertionError("an upsert returns its row")
        stored = (await load_stop_records(tx, key)).get(symbol)
        if stored is not None and stored.opened_at != before["opened_at"]:
            stored = None
        is_unwatched = stored is not None and not stored.watched
        fill = await _baseline_fill(tx, key, change) if isinstance(change, str) else change
        if fill is None and not (stops and before["quantity"] and is_unwatched):
            await _refuse_missing(database, key, symbol, before["quantity"])
        grows = fill is not None and fill.side is Side.BUY
        if grows and before["quantity"] and not is_unwatched and not stops:
            raise RefusedError(
                f"the stops watch {before['quantity'].normalize():f} of {symbol}; adopt more with"
                " --stops, which restarts them from the next price"
            )
        if grows and not isinstance(change, str):
            await tx.execute(SQL.reduce_baseline, *key, symbol, change.quantity)
        if fill is not None:
            await _apply(tx, Ledger(database, bus, key, on_change=None), fill, at)
        after = await tx.fetchrow(SQL.get_position, *key, symbol)
        record = None
        if after is not None and after["quantity"] and (grows or stops):
            record = StopRecord(
                symbol=symbol,
                opened_at=after["opened_at"],
                quantity=float(after["quantity"]),
                average=float(after["average_price"]),
                watched=stops,
                from_market=stops,
                adopted_at=at,
            )
            await save_stop_records(tx, key, [record])
        await tx.execute("SELECT pg_notify($1, $2)", LEDGER_CHANNEL, symbol)
    return record


def external_fill(symbol: str, quantity: Decimal, price: Decimal) -> Fill:
    """Return the fill for `adopt_holding`; a negative quantity reduces the position."""
    if not quantity.is_finite() or not quantity or not price.is_finite() or price <= 0:
        raise RefusedError(
            f"{quantity} of {symbol} at {price}: expected a quantity and a positive price"
        )
    return Fill(
        trade_id="",
        broker_order_id="",
        symbol=symbol,
        side=Side.BUY if quantity > 0 else Side.SELL,
        quantity=abs(quantity),
        price=price,
        fee=Decimal(0),
        at=SystemClock().now(),
    )


async def _baseline_fill(tx: Connection, key: AccountKey, symbol: str) -> Fill | None:
    """Take a symbol out of the baseline; return the fill that brings it into the position."""
    row = await tx.fetchrow(SQL.remove_baseline, *key, symbol)
    if row is None:
        return None
    if not row["average_price"]:
        quantity = f"{row['quantity'].normalize():f}"
        raise RefusedError(
            f"the venue does not know the cost of {symbol}; name it: qts positions adopt {symbol}"
            f" {quantity} --price PRICE --broker {key.broker}"
        )
    return external_fill(symbol, row["quantity"], row["average_price"])


async def _apply(tx: Connection, ledger: Ledger, fill: Fill, at: datetime) -> None:
    name = f"external-{uuid7()}"
    entry = msgspec.structs.replace(fill, trade_id=name, broker_order_id=name, at=at)
    await tx.execute(
        SQL.external_order, *ledger.key, name, entry.symbol, entry.side, entry.quantity, at
    )
    changes = await ledger.apply_fill(tx, entry)
    if not any(getattr(change, "counted", False) for change in changes):
        raise RefusedError(f"that would make the position of {entry.symbol} negative")


async def _refuse_missing(
    database: Database, key: AccountKey, symbol: str, position: Decimal
) -> None:
    if position:
        raise RefusedError(
            f"{symbol} is a position of QTS; expected a holding from before QTS, or QUANTITY and"
            " --price"
        )
    symbols = [each.symbol for each in await list_baseline(database, key)]
    if not symbols:
        raise RefusedError(f"{key.broker} has no holding from before QTS; see qts positions")
    check_name("holding", symbol, symbols)


async def _set_baseline(
    tx: Connection, key: AccountKey, symbol: str, holding: Holding | None, now: datetime
) -> None:
    if holding is None or not holding.quantity:
        await tx.execute(SQL.remove_baseline, *key, symbol)
    else:
        await tx.execute(
            SQL.set_baseline, *key, symbol, holding.quantity, holding.average_price, now
        )
