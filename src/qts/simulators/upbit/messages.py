"""Messages of the Upbit WebSockets: subscriptions, order events, and the SIMPLE formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qts.simulators.market.markets import CoinMarket
from qts.simulators.market.rules import COIN, utc_ms
from qts.simulators.matching import SimulatedFill
from qts.simulators.upbit.gateway import UpbitCustomer, number
from qts.simulators.upbit.orders import Event, UpbitOrderEntry
from qts.simulators.upbit.quotes import UNITS, UpbitCandleApi, UpbitQuoteApi

CANDLES = {"candle.1s": 0, **{f"candle.{unit}m": unit for unit in UNITS}}
PUBLIC, PRIVATE = ("ticker", "trade", "orderbook", *CANDLES), ("myOrder", "myAsset")


@dataclass
class UpbitSubscription:
    kind: str
    codes: list[str]
    """Empty: all, which only the private kinds allow."""
    depth: dict[str, int]
    realtime: bool
    snapshot: bool
    level: float = 0
    """Grouping of the prices of an order book; 0 is none."""


class SubscriptionError(Exception):
    """Error reply to a subscription."""


def subscription(part: dict[str, Any], customer: UpbitCustomer | None) -> UpbitSubscription:
    kind = str(part["type"])
    if kind not in PUBLIC + PRIVATE:
        raise SubscriptionError("WRONG_FORMAT")
    if kind in PRIVATE and customer is None:
        raise SubscriptionError("INVALID_AUTH")
    codes, depth = [], {}
    for text in part.get("codes", ()):
        code, _, levels = str(text).partition(".")
        codes.append(code)
        if levels.isdigit():
            depth[code] = int(levels)
    if kind in PUBLIC and not codes:
        raise SubscriptionError("NO_CODES")
    level = part.get("level", 0)
    if not isinstance(level, int | float) or level < 0:
        raise SubscriptionError("INVALID_PARAM")
    return UpbitSubscription(
        kind,
        codes,
        depth,
        realtime=not part.get("is_only_snapshot", part.get("isOnlySnapshot", False)),
        snapshot=not part.get("is_only_realtime", part.get("isOnlyRealtime", False)),
        level=level,
    )


class UpbitMessages:
    """Public messages, made of the answers of the REST API."""

    def __init__(self, market: CoinMarket, quotes: UpbitQuoteApi, candles: UpbitCandleApi) -> None:
        self._market = market
        self._quotes = quotes
        self._candles = candles

    def public(self, subscribed: UpbitSubscription, i: int) -> dict[str, Any] | None:
        """Return a message about a market, None if there is nothing to tell."""
        code = self._market.universe.codes[i]
        if subscribed.kind in CANDLES:
            return self._candle(subscribed.kind, code)
        if subscribed.kind == "ticker":
            values, extra = self._quotes.ticker(i), self._ticker_extra(i)
        elif subscribed.kind == "orderbook":
            depth, step = subscribed.depth.get(code, 30), round(subscribed.level * COIN)
            values = self._quotes.order_book(i, depth, step)
            extra = {}
        else:
            latest = self._quotes.trades(i)
            if not latest:
                return None
            values, extra = latest[0], self._trade_extra(i, latest[0])
        kept = {
            name: value
            for name, value in values.items()
            if name != "market" and not name.endswith(("_kst", "_utc"))
        }
        return {"type": subscribed.kind, "code": code, **kept, **extra}

    def _candle(self, kind: str, code: str) -> dict[str, Any] | None:
        unit, query = CANDLES[kind], {"market": code}
        found = self._candles.minutes(query, unit) if unit else self._candles.seconds(query)
        if not found:
            return None
        kept = {name: value for name, value in found[0].items() if name not in ("market", "unit")}
        return {"type": kind, "code": code, **kept}

    def _ticker_extra(self, i: int) -> dict[str, Any]:
        bought = float(self._market.buy_volume[i])
        return {
            "ask_bid": "BID" if self._market.at_ask[i] else "ASK",
            "acc_bid_volume": bought,
            "acc_ask_volume": float(self._market.volume[i]) - bought,
            "market_state": "ACTIVE",
        }

    def _trade_extra(self, i: int, trade: dict[str, Any]) -> dict[str, Any]:
        change = trade["change_price"]
        return {
            "trade_timestamp": trade["timestamp"],
            "trade_date": trade["trade_date_utc"],
            "trade_time": trade["trade_time_utc"],
            "change": "RISE" if change > 0 else "FALL" if change < 0 else "EVEN",
            "change_price": abs(change),
            **self._quotes.best(i),
        }


def my_order(
    entry: UpbitOrderEntry, event: Event, fill: SimulatedFill | None, market: CoinMarket
) -> dict[str, Any]:
    order, now = entry.order, utc_ms(market.time)
    fee = entry.customer.account.fee(order.side, fill.price * fill.quantity // COIN) if fill else 0
    has_volume = order.amount is None
    price = order.amount if order.amount is not None else order.limit
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
        "locked": number(entry.customer.account.reserved(order)),
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


_COMMON = "type:ty code:cd timestamp:tms stream_type:st"
_PRICES = """
    trade_price:tp trade_volume:tv ask_bid:ab prev_closing_price:pcp change:c change_price:cp
    trade_timestamp:ttms trade_time:ttm
"""
_NAMES = {
    "ticker": f"""{_COMMON} {_PRICES}
        opening_price:op high_price:hp low_price:lp change_rate:cr signed_change_price:scp
        signed_change_rate:scr acc_trade_volume:atv acc_trade_volume_24h:atv24h
        acc_trade_price:atp acc_trade_price_24h:atp24h trade_date:tdt acc_ask_volume:aav
        acc_bid_volume:abv highest_52_week_price:h52wp highest_52_week_date:h52wdt
        lowest_52_week_price:l52wp lowest_52_week_date:l52wdt market_state:ms""",
    "trade": f"""{_COMMON} {_PRICES} trade_date:td sequential_id:sid best_ask_price:bap
        best_ask_size:bas best_bid_price:bbp best_bid_size:bbs""",
    "orderbook": f"""{_COMMON}
        total_ask_size:tas total_bid_size:tbs orderbook_units:obu ask_price:ap bid_price:bp
        ask_size:as bid_size:bs level:lv""",
    "myOrder": f"""{_COMMON}
        uuid:uid ask_bid:ab order_type:ot state:s trade_uuid:tuid price:p avg_price:ap volume:v
        remaining_volume:rv executed_volume:ev trades_count:tc reserved_fee:rsf remaining_fee:rmf
        paid_fee:pf locked:l executed_funds:ef time_in_force:tif trade_fee:tf is_maker:im
        identifier:id smp_type:smpt prevented_volume:pv prevented_locked:pl trade_timestamp:ttms
        order_timestamp:otms""",
    "myAsset": f"""{_COMMON}
        asset_uuid:astuid assets:ast currency:cu balance:b locked:l asset_timestamp:asttms""",
}
_NAMES |= dict.fromkeys(
    CANDLES,
    f"""{_COMMON} candle_date_time_utc:cdttmu candle_date_time_kst:cdttmk opening_price:op
        high_price:hp low_price:lp trade_price:tp candle_acc_trade_volume:catv
        candle_acc_trade_price:catp""",
)
_SHORT = {kind: dict(pair.split(":") for pair in pairs.split()) for kind, pairs in _NAMES.items()}


def simplified(message: dict[str, Any]) -> dict[str, Any]:
    short = _SHORT.get(str(message.get("type")))
    return _renamed(message, short) if short else message


def _renamed(values: dict[str, Any], short: dict[str, str]) -> dict[str, Any]:
    return {
        short.get(name, name): (
            [_renamed(each, short) for each in value] if isinstance(value, list) else value
        )
        for name, value in values.items()
    }
