"""What is said on Upbit's WebSockets: subscriptions in, events of orders out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qts.simulators.market.coins import CoinMarket
from qts.simulators.market.sessions import utc_ms
from qts.simulators.market.ticks import COIN
from qts.simulators.matching import Fill
from qts.simulators.upbit.gateway import Customer
from qts.simulators.upbit.orders import Entry, Event
from qts.simulators.upbit.replies import number

PUBLIC, PRIVATE = ("ticker", "trade", "orderbook"), ("myOrder", "myAsset")


@dataclass
class Subscription:
    kind: str
    codes: list[str]
    """Empty: all, which only the private kinds allow."""
    depth: dict[str, int]
    realtime: bool
    snapshot: bool


class Wrong(Exception):  # noqa: N818 - what the client's message is
    """A message that is answered with an error."""


def subscription(part: dict[str, Any], customer: Customer | None) -> Subscription:
    kind = str(part["type"])
    if kind not in PUBLIC + PRIVATE:
        raise Wrong("WRONG_FORMAT")
    if kind in PRIVATE and customer is None:
        raise Wrong("INVALID_AUTH")
    codes, depth = [], {}
    for text in part.get("codes", ()):
        code, _, levels = str(text).partition(".")
        codes.append(code)
        if levels.isdigit():
            depth[code] = int(levels)
    if kind in PUBLIC and not codes:
        raise Wrong("NO_CODES")
    return Subscription(
        kind,
        codes,
        depth,
        realtime=not part.get("is_only_snapshot", False),
        snapshot=not part.get("is_only_realtime", False),
    )


def my_order(entry: Entry, event: Event, fill: Fill | None, market: CoinMarket) -> dict[str, Any]:
    order, now = entry.order, utc_ms(market.time)
    fee = entry.customer.account.fee(order.side, fill.price * fill.quantity // COIN) if fill else 0
    has_volume = order.budget is None
    price = order.budget if order.budget is not None else order.limit
    return {
        "type": "myOrder",
        "code": market.universe.codes[order.index],
        "uuid": entry.uuid,
        "ask_bid": "BID" if order.side == "buy" else "ASK",
        "order_type": entry.kind,
        "state": event,
        "trade_uuid": entry.trade_uuids[-1] if fill else None,
        "price": number(fill.price) if fill else number(price) if price else None,
        "avg_price": order.paid / order.filled / COIN if order.filled else 0,
        "volume": number(fill.quantity if fill else order.quantity if has_volume else 0),
        "remaining_volume": number(order.quantity - order.filled) if has_volume else 0,
        "executed_volume": number(order.filled),
        "trades_count": len(order.fills),
        "reserved_fee": number(entry.reserved_fee),
        "remaining_fee": number(max(0, entry.reserved_fee - entry.paid_fee) if order.open else 0),
        "paid_fee": number(entry.paid_fee),
        "locked": number(entry.customer.account.held(order)),
        "executed_funds": number(order.paid // COIN),
        "time_in_force": entry.time_in_force,
        "trade_fee": number(fee) if fill else None,
        "is_maker": fill.maker if fill else None,
        "identifier": entry.identifier,
        "smp_type": entry.smp_type,
        "prevented_volume": 0,
        "prevented_locked": 0,
        "trade_timestamp": now if fill else None,
        "order_timestamp": utc_ms(order.placed_at),
        "timestamp": now,
        "stream_type": "REALTIME",
    }
