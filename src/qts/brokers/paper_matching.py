"""The paper venue's matching: orders against the latest tick, without I/O; same seed, same fills.

    prepare ── funds held ──▶ start ── taker: at the quote, slipped ──▶ filled
                                └──▶ rests ── a quote or a trade comes through it ──▶ filled at
                                                                             its own price
Money and quantities are Decimal. A tick costs a dict entry while no order of its symbol is open.
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
    is_on_tick,
    market_for_symbol,
    round_to_tick,
    tick_size,
)
from qts.venues import VenueRejectedError

LOT = {Market.KRX: Decimal(1), Market.UPBIT: Decimal("0.00000001")}
WON = {Market.KRX: Decimal(1), Market.UPBIT: Decimal("0.00000001")}  # what a fee is cut to
UPBIT_LEAST = 5_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ZERO = Decimal(0)
_INFINITE = float("inf")

Number = float | int | Decimal


# last, bid, ask, volume traded in this tick (not in the day); a plain tuple for speed
Tick = tuple[Number, Number, Number, Number]


class PaperOrder:
    """An order in the engine; `rested` when a tick has passed it by."""

    __slots__ = ("filled", "fills", "order_id", "request", "rested", "starts_ns", "worst")

    def __init__(self, order_id: str, request: OrderRequest, starts_ns: int) -> None:
        self.order_id = order_id
        self.request = request
        self.starts_ns = starts_ns
        self.worst = request.price or _ZERO  # what its funds were held at
        self.filled = _ZERO
        self.fills = 0
        self.rested = False

    @property
    def left(self) -> Decimal:
        return self.request.quantity - self.filled


class PaperMatchingEngine:
    """For one thread. `on_tick` tells the market; what it answers has happened."""

    def __init__(self, config: PaperConfig, costs: FeesConfig, cash: Decimal) -> None:
        self._config = config
        self._costs: dict[Market, FeeSchedule] = {market: costs.of(market) for market in Market}
        self._chance = random.Random(config.seed)  # noqa: S311 - reproducible on purpose
        self._share = Decimal(repr(config.volume_share))
        self._bps = Decimal(repr(config.slippage_bps)) / 10_000
        self._ticks: dict[str, Tick] = {}
        self._open: dict[str, dict[str, PaperOrder]] = {}
        self._symbols: dict[str, str] = {}
        self._left: dict[str, tuple[Tick, Decimal]] = {}
        self.purse = PaperAccount(cash)

    # -- the market

    def on_tick(
        self, symbol: str, last: Number, bid: Number, ask: Number, volume: Number, at_ns: int
    ) -> Sequence[Fill]:
        """The market of a symbol from now on; 0 where a side has no quote."""
        self._ticks[symbol] = (last, bid, ask, volume)
        if symbol in self._open:
            return self._match(symbol, at_ns)
        return ()

    # -- orders

    def submit(self, order_id: str, request: OrderRequest, at_ns: int) -> Sequence[Fill]:
        """Prepare and start in one: for those who keep no book outside."""
        return self.start(self.prepare(order_id, request, at_ns), at_ns)

    def prepare(self, order_id: str, request: OrderRequest, at_ns: int) -> PaperOrder:
        """Check an order as the venue does, and hold its funds; Rejected says why not."""
        market = market_for_symbol(request.symbol)
        self._check_form(request, market)
        wait_ms = self._config.latency_ms
        if self._config.latency_jitter_ms:
            wait_ms += self._config.latency_jitter_ms * self._chance.random()
        order = PaperOrder(order_id, request, at_ns + round(wait_ms * 1e6))
        if request.price is None:
            order.worst = self._slipped(self._quote(request), request.side, market)
        self.purse.hold(order_id, request, order.worst, self._costs[market])
        return order

    def start(self, order: PaperOrder, at_ns: int) -> Sequence[Fill]:
        """From now on it can trade; at once, if the latest tick lets it."""
        symbol = order.request.symbol
        self._open.setdefault(symbol, {})[order.order_id] = order
        self._symbols[order.order_id] = symbol
        return self._match(symbol, at_ns)

    def drop(self, order: PaperOrder) -> None:
        """A prepared order that never starts."""
        self.purse.release(order.order_id)

    def restore(self, order: PaperOrder, filled: Decimal, fills: int) -> None:
        """An order of an earlier life, with what was filled then; it counts as resting."""
        order.filled, order.fills = filled, fills
        order.rested = order.request.type is OrderType.LIMIT
        self.purse.hold_left(
            order.order_id, order.request, order.worst, order.left, self._cost(order)
        )
        self._open.setdefault(order.request.symbol, {})[order.order_id] = order
        self._symbols[order.order_id] = order.request.symbol

    def cancel(self, order_id: str) -> PaperOrder | None:
        """Take it out; None when it is not open."""
        symbol = self._symbols.get(order_id)
        if symbol is None:
            return None
        order = self._open[symbol][order_id]
        self._close(order)
        return order

    def is_open(self, order_id: str) -> bool:
        return order_id in self._symbols

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
                continue
            quantity = self._take(symbol, tick, order.left)
            if quantity > 0:
                fills.append(self._fill(order, price, quantity, at_ns))
        return fills

    def _price(self, order: PaperOrder, tick: Tick) -> Decimal | None:
        """What the order trades at on this tick; None: it does not."""
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
        """A taker's price: so many ticks and parts worse, on a tick."""
        if not self._config.slippage_ticks and not self._bps:
            return quote
        worse = tick_size(market, quote) * self._config.slippage_ticks + quote * self._bps
        return round_to_tick(market, quote + side.sign * worse, side.opposite)

    def _take(self, symbol: str, tick: Tick, wanted: Decimal) -> Decimal:
        """As much as the tick has left for us."""
        if not self._share:
            return wanted
        seen = self._left.get(symbol)
        if seen is None or seen[0] is not tick:
            lot = LOT[market_for_symbol(symbol)]
            shared = self._share * exact(tick[3] if 0 < tick[3] < _INFINITE else 0)
            seen = (tick, (shared / lot).to_integral_value(ROUND_FLOOR) * lot)
        taken = min(wanted, seen[1])
        self._left[symbol] = (tick, seen[1] - taken)
        return taken

    def _fill(self, order: PaperOrder, price: Decimal, quantity: Decimal, at_ns: int) -> Fill:
        request, market = order.request, market_for_symbol(order.request.symbol)
        order.filled += quantity
        order.fills += 1
        fee = self._costs[market].of(request.side, price * quantity)
        fill = Fill(
            trade_id=f"{order.order_id}.{order.fills}",
            broker_order_id=order.order_id,
            symbol=request.symbol,
            side=request.side,
            quantity=quantity,
            price=price,
            fee=fee.quantize(WON[market], ROUND_FLOOR),
            at=_EPOCH + timedelta(microseconds=at_ns // 1000),
        )
        self.purse.settle(fill)
        if order.left > 0:
            self.purse.hold_left(
                order.order_id, request, order.worst, order.left, self._cost(order)
            )
        else:
            self._close(order)
        return fill

    def _close(self, order: PaperOrder) -> None:
        orders = self._open[order.request.symbol]
        del orders[order.order_id], self._symbols[order.order_id]
        if not orders:
            del self._open[order.request.symbol]
        self.purse.release(order.order_id)

    # -- checks

    def _check_form(self, request: OrderRequest, market: Market) -> None:
        if request.quantity % LOT[market]:
            raise VenueRejectedError(
                f"{request.quantity} of {request.symbol} is no whole lot", "lot"
            )
        price = request.price
        if price is not None and not is_on_tick(market, price):
            raise VenueRejectedError(f"{price} of {request.symbol} is not on a tick", "tick")
        if market is Market.UPBIT:
            amount = (price or self._quote(request)) * request.quantity
            if amount < UPBIT_LEAST:
                raise VenueRejectedError(
                    f"an order at Upbit is of {UPBIT_LEAST} won at least", "least"
                )

    def _quote(self, request: OrderRequest) -> Decimal:
        tick = self._ticks.get(request.symbol)
        if tick is None or not 0 < tick[0] < _INFINITE:
            raise VenueRejectedError(f"no price of {request.symbol} is known", "no_price")
        return quote_of(tick, request.side)

    def _cost(self, order: PaperOrder) -> FeeSchedule:
        return self._costs[market_for_symbol(order.request.symbol)]


def quote_of(tick: Tick, side: Side) -> Decimal:
    """What a taker would trade at: the other side, or the last price where there is none."""
    last, bid, ask, _ = tick
    quote = ask if side is Side.BUY else bid
    return exact(quote if 0 < quote < _INFINITE else last)


def exact(number: Number) -> Decimal:
    return Decimal(repr(number)) if isinstance(number, float) else Decimal(number)
