"""Orders and fills as Upbit has them: request values, parsing, and the reading of all fills.

It lists closed orders by placement time and gives the trades of one order:

    listed      open orders, and closed ones placed since the last list; of a week before the first
    requested   orders with fills that are open, were open in the last list, or are new
    remembered  the fills of closed orders: they are final
    left out    closed orders whose fills are all in the ledger, and all before those asked for

So a reading costs what has happened since the one before, not what happened in the week.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import ROUND_FLOOR, Decimal
from typing import Any, NamedTuple

from qts.database import Database
from qts.domain import (
    AccountKey,
    BrokerOrder,
    FeeSchedule,
    Fill,
    OrderRequest,
    OrderState,
    OrderType,
    Side,
    TimeInForce,
)
from qts.venues import VenueRejectedError

_SIDES = {"bid": Side.BUY, "ask": Side.SELL}
_SIDE_CODES = {side: code for code, side in _SIDES.items()}
_OPEN = frozenset({"wait", "watch", "trade"})
_UNIT = Decimal("0.00000001")
_EXACT = 2**26  # the stream sends doubles; below this they are exact to one unit

OVERLAP = timedelta(seconds=60)  # of two lists, by the venue's clock
_APPLIED = (
    "SELECT o.broker_order_id, o.applied, max(f.traded_at) AS last_at"
    " FROM broker_order o JOIN fill f USING (broker, account, broker_order_id)"
    " WHERE o.broker = $1 AND o.account = $2 AND o.broker_order_id = ANY ($3)"
    " GROUP BY o.broker_order_id, o.applied"
)

Values = list[tuple[str, str]]
Json = Mapping[str, Any]
OrderRow = dict[str, Any]


def place_values(request: OrderRequest, worst: Decimal | None) -> Values:
    """Build the body of an order; `worst` is the limit price of a market buy.

    Upbit's market buy takes an amount of money, and buys more than requested if the price falls
    meanwhile. An immediate-or-cancel limit order buys the requested quantity or less.
    """
    values = [("market", request.symbol), ("side", _SIDE_CODES[request.side])]
    price = request.price or worst
    values.append(("ord_type", "limit" if price is not None else "market"))
    values.append(("volume", plain(request.quantity)))
    if price is not None:
        values.append(("price", plain(price)))
    is_fok = request.time_in_force is TimeInForce.FOK
    if is_fok and price is None:
        raise VenueRejectedError(
            f"Upbit has no FOK for a market sale of {request.symbol};"
            " expected a limit order, or IOC",
            "time_in_force",
        )
    if is_fok:
        values.append(("time_in_force", "fok"))
    elif price is not None and (request.price is None or request.time_in_force is TimeInForce.IOC):
        values.append(("time_in_force", "ioc"))
    return [*values, ("identifier", request.client_order_id)]


def plain(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def order_of(row: Json) -> BrokerOrder:
    """Parse an order of the REST API."""
    volume, price = row.get("volume"), row.get("price")
    return _order(
        row,
        ids=(row["uuid"], row["market"], row["side"], row["ord_type"]),
        volume=Decimal(volume) if volume is not None else None,
        filled=Decimal(row["executed_volume"]),
        price=Decimal(price) if price is not None else None,
        placed_at=datetime.fromisoformat(row["created_at"]),
    )


def order_event(row: Json) -> BrokerOrder:
    """Parse an order event of the stream."""
    price = row.get("price")
    return _order(
        row,
        ids=(row["uuid"], row["code"], row["ask_bid"].lower(), row["order_type"]),
        volume=units(row["volume"]) or None,
        filled=units(row["executed_volume"]),
        price=units(price) if price is not None else None,
        placed_at=moment_of(row["order_timestamp"]),
    )


def fills_of(row: Json, costs: FeeSchedule) -> list[Fill]:
    """Parse the trades of an order of the REST API, which gives no fee for a single trade."""
    fills = []
    for trade in row.get("trades", ()):
        side = _SIDES[row["side"]]
        # 0 where the venue gives none: the ledger refuses such a fill and raises FS041.
        price, volume = Decimal(trade.get("price") or 0), Decimal(trade.get("volume") or 0)
        funds = (price * volume).quantize(_UNIT, ROUND_FLOOR)
        fills.append(
            Fill(
                trade_id=trade["uuid"],
                broker_order_id=row["uuid"],
                symbol=row["market"],
                side=side,
                quantity=volume,
                price=price,
                fee=costs.of(side, funds).quantize(_UNIT, ROUND_FLOOR),
                at=datetime.fromisoformat(trade["created_at"]),
            )
        )
    return fills


def fill_event(row: Json) -> Fill:
    """Parse a trade event of the stream."""
    return Fill(
        trade_id=row["trade_uuid"],
        broker_order_id=row["uuid"],
        symbol=row["code"],
        side=_SIDES[row["ask_bid"].lower()],
        quantity=units(row.get("volume") or 0),
        price=units(row.get("price") or 0),
        fee=units(row["trade_fee"]),
        at=moment_of(row["trade_timestamp"]),
    )


def units(number: float | int) -> Decimal:
    """Convert a number of the stream; raise ValueError where a double may have lost digits."""
    if isinstance(number, int):
        return Decimal(number)
    if not abs(number) < _EXACT and not (number.is_integer() and abs(number) < 2**53):
        raise ValueError(f"{number!r} has more digits than a double")
    return Decimal(number).quantize(_UNIT)


def moment_of(timestamp_ms: int) -> datetime:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC)


def _order(
    row: Json,
    *,
    ids: tuple[str, str, str, str],
    volume: Decimal | None,
    filled: Decimal,
    price: Decimal | None,
    placed_at: datetime,
) -> BrokerOrder:
    """Build a BrokerOrder; an order by amount has no volume and gets its filled quantity."""
    broker_order_id, symbol, side, kind = ids
    is_limit = kind == "limit" and row.get("time_in_force") != "ioc"
    if row["state"] in _OPEN:
        state = OrderState.OPEN
    else:
        # A filled order may end as "cancel" over a tiny remainder: the filled volume decides.
        is_full = filled > 0 and (volume is None or filled >= volume)
        state = OrderState.FILLED if is_full else OrderState.CANCELLED
    return BrokerOrder(
        broker_order_id=broker_order_id,
        symbol=symbol,
        side=_SIDES[side],
        type=OrderType.LIMIT if is_limit else OrderType.MARKET,
        quantity=volume if volume is not None else filled,
        filled=filled,
        state=state,
        placed_at=placed_at,
        price=price if is_limit else None,
        client_order_id=row.get("identifier"),
    )


class AppliedFills(NamedTuple):
    """What the ledger has of an order."""

    quantity: Decimal
    last_at: datetime


ReadApplied = Callable[[Sequence[str]], Awaitable[Mapping[str, AppliedFills]]]


def read_applied(database: Database, key: AccountKey) -> ReadApplied:
    """Return what reads the fills that the ledger has of orders."""

    async def read(order_ids: Sequence[str]) -> Mapping[str, AppliedFills]:
        rows = await database.fetch(_APPLIED, *key, list(order_ids))
        return {
            row["broker_order_id"]: AppliedFills(row["applied"], row["last_at"]) for row in rows
        }

    return read


class OrderLists(NamedTuple):
    """Requests: the open orders, closed ones placed since then, and an order with its trades."""

    open: Callable[[], Awaitable[list[OrderRow]]]
    closed: Callable[[datetime], Awaitable[list[OrderRow]]]
    order: Callable[[str], Awaitable[OrderRow]]


class _ClosedOrder(NamedTuple):
    placed_at: datetime
    fills: list[Fill] | None  # None: all are in the ledger
    last_at: datetime | None = None


class UpbitFillReader:
    """Reader of one account, one call at a time; without `applied` the ledger is not asked."""

    def __init__(self, lists: OrderLists, costs: FeeSchedule, applied: ReadApplied | None) -> None:
        self._lists = lists
        self._costs = costs
        self._applied = applied
        self._closed: dict[str, _ClosedOrder] = {}
        self._open: frozenset[str] = frozenset()
        self._listed: tuple[datetime, datetime] | None = None  # orders placed from, to

    async def read(self, placed_since: datetime, first: datetime, now: datetime) -> list[Fill]:
        """Return the fills since `first` of orders placed since then, oldest first."""
        start, listed_from = self._start(placed_since, now)
        open_rows = await self._lists.open()  # first: one that closes meanwhile is then in both
        rows = {row["uuid"]: row for row in (*open_rows, *await self._lists.closed(start))}
        open_now = frozenset(row["uuid"] for row in open_rows)
        kept = {key: each for key, each in self._closed.items() if each.placed_at >= placed_since}
        filled = [each for each, row in rows.items() if Decimal(row["executed_volume"]) > 0]
        new = [rows[each] for each in filled if each not in kept and each not in open_now]
        self._closed = kept | await self._in_ledger(new)
        was_open = self._open - rows.keys()
        fills: list[Fill] = []
        for uuid in dict.fromkeys((*filled, *was_open, *self._closed)):
            fills += await self._fills_of(uuid, first)
        placed = [datetime.fromisoformat(row["created_at"]) for row in rows.values()]
        self._open, self._listed = open_now, (listed_from, max([start, *placed]))
        return sorted((fill for fill in fills if fill.at >= first), key=lambda fill: fill.at)

    def _start(self, placed_since: datetime, now: datetime) -> tuple[datetime, datetime]:
        """Return from when on closed orders are listed now, and have been listed then."""
        if self._listed is None or self._listed[0] > placed_since:
            return placed_since, placed_since
        listed_from, listed_to = self._listed
        return max(placed_since, min(listed_to, now) - OVERLAP), listed_from

    async def _in_ledger(self, rows: list[OrderRow]) -> dict[str, _ClosedOrder]:
        """Return the closed orders whose fills the ledger has in full."""
        if self._applied is None or not rows:
            return {}
        known = await self._applied([row["uuid"] for row in rows])
        return {
            row["uuid"]: _ClosedOrder(datetime.fromisoformat(row["created_at"]), None, has.last_at)
            for row in rows
            if (has := known.get(row["uuid"])) and has.quantity == Decimal(row["executed_volume"])
        }

    async def _fills_of(self, uuid: str, first: datetime) -> list[Fill]:
        if (known := self._closed.get(uuid)) is not None:
            if known.fills is not None:
                return known.fills
            if known.last_at is not None and known.last_at < first:
                return []
        try:
            row = await self._lists.order(uuid)
        except VenueRejectedError as error:
            if error.code != "order_not_found":  # one that was cancelled without a fill
                raise
            return []
        fills = fills_of(row, self._costs)
        if row["state"] in ("done", "cancel"):
            self._closed[uuid] = _ClosedOrder(datetime.fromisoformat(row["created_at"]), fills)
        return fills
