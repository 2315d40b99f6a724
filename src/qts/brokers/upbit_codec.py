"""Codec for Upbit orders: request values, and parsing of orders, trades and events."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import ROUND_FLOOR, Decimal
from typing import Any

from qts.domain import (
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

Values = list[tuple[str, str]]
Json = Mapping[str, Any]


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
