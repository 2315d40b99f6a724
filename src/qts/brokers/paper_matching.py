"""Matching of the paper venue: orders against the latest tick, without I/O, deterministic by seed.

    prepare ── funds held ──▶ start ── taker: at the quote plus slippage ──▶ filled
                                ├──▶ IOC ── after the first match ──▶ the rest is cancelled
                                └──▶ rests ── a quote reaches or a trade passes its price ──▶
                                                                     filled at its own price
Money and quantities are Decimal. A tick costs one dict write while its symbol has no open order.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import ROUND_FLOOR, Decimal

from qts.brokers.config import FeesConfig, PaperConfig
from qts.brokers.paper_account import PaperAccount
from qts.domain import (
    FeeSchedule,
    Fill,
    Market,
    OrderRequest,
    OrderType,
    Side,
    TimeInForce,
    is_on_tick,
    market_for_symbol,
    min_order_value,
    round_to_tick,
    tick_size,
)
from qts.venues import VenueRejectedError

LOT = {Market.KRX: Decimal(1), Market.UPBIT: Decimal("0.00000001")}
FEE_UNIT = {Market.KRX: Decimal(1), Market.UPBIT: Decimal("0.00000001")}  # fees round down to it
BELOW_MINIMUM = "least"  # code of an order that is too small
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ZERO = Decimal(0)
_INFINITE = float("inf")

Number = float | int | Decimal


# last, bid, ask, volume traded in this tick (not in the day); a plain tuple for speed
Tick = tuple[Number, Number, Number, Number]


class PaperOrder:
    """Order in the engine; `rested` once a tick did not fill it."""

    __slots__ = ("broker_order_id", "filled", "fills", "request", "rested", "starts_ns", "worst")

    def __init__(self, broker_order_id: str, request: OrderRequest, starts_ns: int) -> None:
        self.broker_order_id = broker_order_id
        self.request = request
        self.starts_ns = starts_ns
        self.worst = request.price or _ZERO  # the price its funds are held at
        self.filled = _ZERO
        self.fills = 0
        self.rested = False

    @property
    def remaining(self) -> Decimal:
        return self.request.quantity - self.filled


class PaperMatchingEngine:
    """Matching engine for one thread. Returned fills are final and already settled."""

    def __init__(self, config: PaperConfig, costs: FeesConfig, cash: Decimal) -> None:
        self._config = config
        self._costs: dict[Market, FeeSchedule] = {market: costs.of(market) for market in Market}
        self._random = random.Random(config.seed)  # noqa: S311 - reproducible on purpose
        self._share = Decimal(repr(config.volume_share))
        self._bps = Decimal(repr(config.slippage_bps)) / 10_000
        self._ticks: dict[str, Tick] = {}
        self._open: dict[str, dict[str, PaperOrder]] = {}
        self._symbols: dict[str, str] = {}
        self._volume_left: dict[str, tuple[Tick, Decimal]] = {}
        self.account = PaperAccount(cash)
        self.cancelled: list[str] = []  # IOC orders that ended unfilled, for the caller to clear

    # -- market

    def on_tick(
        self, symbol: str, last: Number, bid: Number, ask: Number, volume: Number, at_ns: int
    ) -> Sequence[Fill]:
        """Set the symbol's market, 0 for a side without a quote; return the resulting fills."""
        self._ticks[symbol] = (last, bid, ask, volume)
        if symbol in self._open:
            return self._match(symbol, at_ns)
        return ()

    # -- orders

    def submit(self, broker_order_id: str, request: OrderRequest, at_ns: int) -> Sequence[Fill]:
        """Prepare and start the order in one step."""
        return self.start(self.prepare(broker_order_id, request, at_ns), at_ns)

    def prepare(self, broker_order_id: str, request: OrderRequest, at_ns: int) -> PaperOrder:
        """Check the order and hold its funds; raise VenueRejectedError if the venue declines it."""
        market = market_for_symbol(request.symbol)
        self._check_form(request, market)
        wait_ms = self._config.latency_ms
        if self._config.latency_jitter_ms:
            wait_ms += self._config.latency_jitter_ms * self._random.random()
        order = PaperOrder(broker_order_id, request, at_ns + round(wait_ms * 1e6))
        if request.price is None:
            order.worst = self._slipped(self._quote(request), request.side, market)
        self.account.hold(broker_order_id, request, order.worst, self._costs[market])
        return order

    def start(self, order: PaperOrder, at_ns: int) -> Sequence[Fill]:
        """Open the order and match it against the latest tick."""
        symbol = order.request.symbol
        self._open.setdefault(symbol, {})[order.broker_order_id] = order
        self._symbols[order.broker_order_id] = symbol
        return self._match(symbol, at_ns)

    def drop(self, order: PaperOrder) -> None:
        """Release the funds of a prepared order that is not started."""
        self.account.release(order.broker_order_id)

    def restore(self, order: PaperOrder, filled: Decimal, fills: int) -> None:
        """Reopen an order from before a restart; a limit order counts as resting."""
        order.filled, order.fills = filled, fills
        order.rested = order.request.type is OrderType.LIMIT
        self.account.hold_remaining(
            order.broker_order_id, order.request, order.worst, order.remaining, self._fees(order)
        )
        self._open.setdefault(order.request.symbol, {})[order.broker_order_id] = order
        self._symbols[order.broker_order_id] = order.request.symbol

    def cancel(self, broker_order_id: str) -> PaperOrder | None:
        """Remove and return the order; None if it is not open."""
        symbol = self._symbols.get(broker_order_id)
        if symbol is None:
            return None
        order = self._open[symbol][broker_order_id]
        self._close(order)
        return order

    def is_open(self, broker_order_id: str) -> bool:
        return broker_order_id in self._symbols

    # -- matching

    def _match(self, symbol: str, at_ns: int) -> Sequence[Fill]:
        tick = self._ticks.get(symbol)
        if tick is None or not 0 < tick[0] < _INFINITE:
            return ()
        fills: list[Fill] = []
        for order in list(self._open[symbol].values()):
            if order.starts_ns > at_ns:
                continue
            price = self._price(order, tick)
            if price is None:
                order.rested = True
            elif (quantity := self._take_volume(symbol, tick, order.remaining)) > 0:
                fills.append(self._fill(order, price, quantity, at_ns))
            if order.request.time_in_force is TimeInForce.IOC and order.remaining > 0:
                self._close(order)
                self.cancelled.append(order.broker_order_id)
        return fills

    def _price(self, order: PaperOrder, tick: Tick) -> Decimal | None:
        """Return the price at which the tick fills the order, or None."""
        request, limit = order.request, order.request.price
        quote, last, sign = quote_of(tick, request.side), exact(tick[0]), request.side.sign
        if limit is None:
            return self._slipped(quote, request.side, market_for_symbol(request.symbol))
        if order.rested:
            through = (limit - quote) * sign >= 0 or (limit - last) * sign > 0
            return limit if through else None
        if (limit - quote) * sign < 0:
            return None
        price = self._slipped(quote, request.side, market_for_symbol(request.symbol))
        return min(price, limit) if request.side is Side.BUY else max(price, limit)

    def _slipped(self, quote: Decimal, side: Side, market: Market) -> Decimal:
        """Return a taker's price: the quote, worse by the slippage, rounded to a tick."""
        if not self._config.slippage_ticks and not self._bps:
            return quote
        worse = tick_size(market, quote) * self._config.slippage_ticks + quote * self._bps
        return round_to_tick(market, quote + side.sign * worse, side.opposite)

    def _take_volume(self, symbol: str, tick: Tick, quantity: Decimal) -> Decimal:
        """Take up to `quantity` from the tick's share for paper orders; return what was taken."""
        if not self._share:
            return quantity
        left = self._volume_left.get(symbol)
        if left is None or left[0] is not tick:
            lot = LOT[market_for_symbol(symbol)]
            shared = self._share * exact(tick[3] if 0 < tick[3] < _INFINITE else 0)
            left = (tick, (shared / lot).to_integral_value(ROUND_FLOOR) * lot)
        taken = min(quantity, left[1])
        self._volume_left[symbol] = (tick, left[1] - taken)
        return taken

    def _fill(self, order: PaperOrder, price: Decimal, quantity: Decimal, at_ns: int) -> Fill:
        request, market = order.request, market_for_symbol(order.request.symbol)
        order.filled += quantity
        order.fills += 1
        fee = self._costs[market].of(request.side, price * quantity)
        fill = Fill(
            trade_id=f"{order.broker_order_id}.{order.fills}",
            broker_order_id=order.broker_order_id,
            symbol=request.symbol,
            side=request.side,
            quantity=quantity,
            price=price,
            fee=fee.quantize(FEE_UNIT[market], ROUND_FLOOR),
            at=_EPOCH + timedelta(microseconds=at_ns // 1000),
        )
        self.account.settle(fill)
        if order.remaining > 0:
            self.account.hold_remaining(
                order.broker_order_id, request, order.worst, order.remaining, self._fees(order)
            )
        else:
            self._close(order)
        return fill

    def _close(self, order: PaperOrder) -> None:
        orders = self._open[order.request.symbol]
        del orders[order.broker_order_id], self._symbols[order.broker_order_id]
        if not orders:
            del self._open[order.request.symbol]
        self.account.release(order.broker_order_id)

    # -- checks

    def _check_form(self, request: OrderRequest, market: Market) -> None:
        if request.quantity % LOT[market]:
            raise VenueRejectedError(
                f"{request.quantity} of {request.symbol} is no multiple of {LOT[market]:f}",
                "lot",
            )
        price = request.price
        if price is not None and not is_on_tick(market, price):
            raise VenueRejectedError(f"{price} of {request.symbol} is not on a tick", "tick")
        if minimum := min_order_value(market):
            amount = (price or self._quote(request)) * request.quantity
            if amount < minimum:
                raise VenueRejectedError(
                    f"{amount} won is below the minimum of {minimum} won", BELOW_MINIMUM
                )

    def _quote(self, request: OrderRequest) -> Decimal:
        tick = self._ticks.get(request.symbol)
        if tick is None or not 0 < tick[0] < _INFINITE:
            raise VenueRejectedError(f"{request.symbol} has no price yet", "no_price")
        return quote_of(tick, request.side)

    def _fees(self, order: PaperOrder) -> FeeSchedule:
        return self._costs[market_for_symbol(order.request.symbol)]


def quote_of(tick: Tick, side: Side) -> Decimal:
    """Return the opposite side's quote, or the last price if that side has none."""
    last, bid, ask, _ = tick
    quote = ask if side is Side.BUY else bid
    return exact(quote if 0 < quote < _INFINITE else last)


def exact(number: Number) -> Decimal:
    return Decimal(repr(number)) if isinstance(number, float) else Decimal(number)
