"""Matching of the paper venue: orders against the latest tick and book, deterministic by seed.

    prepare ── funds held ──▶ start ── taker: at the quote plus slippage ──▶ filled
                                ├──▶ IOC ── after the first match ──▶ the rest is cancelled
                                ├──▶ FOK ── fills as a whole at its first match ──▶ or cancelled
                                └──▶ rests ── a quote reaches or a trade passes its price ──▶
                                                                     filled at its own price

With a fresh order book a taker takes its levels, best first, each once: what the book does not
hold waits for the next book or tick. A book that is older than its tick by a second is not used.
Money and quantities are Decimal. A tick costs one dict write while its symbol has no open order.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from qts.brokers.config import FeesConfig, PaperConfig
from qts.brokers.paper_account import BookDepth, Lot, PaperAccount, exact
from qts.domain import (
    FILL_AT_ONCE,
    FeeSchedule,
    Fill,
    Instrument,
    Instruments,
    OrderBook,
    OrderRequest,
    OrderType,
    Position,
    Side,
    Tick,
    TimeInForce,
)
from qts.venues import VenueRejectedError

BELOW_MINIMUM = "least"  # code of an order that is too small
MAX_BEHIND_TICK_S = 1.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ZERO, _UNLIMITED = Decimal(0), Decimal("Infinity")
_INFINITE = float("inf")


class PaperOrder:
    """Order in the engine; `rested` once a tick did not fill it."""

    __slots__ = ("broker_order_id", "fills", "remaining", "request", "rested", "starts_ns", "worst")

    def __init__(self, broker_order_id: str, request: OrderRequest, starts_ns: int) -> None:
        self.broker_order_id = broker_order_id
        self.request = request
        self.starts_ns = starts_ns
        self.worst = request.price or _ZERO  # the price its funds are held at
        self.remaining = request.quantity - _ZERO  # 1E+2 as 100: fills show their digits
        self.fills = 0
        self.rested = False


class PaperMatchingEngine:
    """Matching engine for one thread. Returned fills are final and already settled."""

    def __init__(
        self,
        config: PaperConfig,
        costs: FeesConfig,
        cash: Decimal,
        instruments: Instruments,
        positions: Iterable[Position] = (),
        ticks: dict[str, Tick] | None = None,
    ) -> None:
        """Begin with cash and positions; `ticks` are last ones that somebody else keeps as well."""
        self._config = config
        self._costs = costs
        self._instruments = instruments
        self._random = random.Random(config.seed)  # noqa: S311 - reproducible on purpose
        self._share = Decimal(repr(config.volume_share))
        self._bps = Decimal(repr(config.slippage_bps)) / 10_000
        self._ticks = {} if ticks is None else ticks
        self._open: dict[str, dict[str, PaperOrder]] = {}
        self._symbols: dict[str, str] = {}
        self._books: dict[str, BookDepth] = {}
        self._bars: dict[str, tuple[Decimal, Decimal]] = {}  # low and high of the current one
        self._volume_left: dict[str, tuple[Tick, Decimal]] = {}
        lots = {
            each.symbol: Lot(each.quantity, each.quantity * each.average_price)
            for each in positions
        }
        self.account = PaperAccount(cash, lots)
        self.cancelled: list[str] = []  # IOC and FOK orders that ended, for the caller to clear

    # -- market

    def on_tick(self, tick: Tick, at_ns: int) -> Sequence[Fill]:
        """Set the market of the tick's symbol; return the resulting fills."""
        symbol = tick.symbol
        self._ticks[symbol] = tick
        if symbol in self._open:
            return self._match(symbol, at_ns, traded=True)
        return ()

    def on_open(self, tick: Tick, prices: tuple[Decimal, Decimal], at_ns: int) -> Sequence[Fill]:
        """Begin a bar at its open; until the next one no fill is outside its lowest and highest.

        Like an auction, the open fills a resting order at the open, not at the order's own price.
        """
        self._bars[tick.symbol] = prices
        for order in self._open.get(tick.symbol, {}).values():
            order.rested = False
        return self.on_tick(tick, at_ns)

    def on_book(self, book: OrderBook, at_ns: int) -> Sequence[Fill]:
        """Set the order book of its symbol; return the resulting fills."""
        self._books[book.symbol] = BookDepth(book)
        if book.symbol in self._open:
            return self._match(book.symbol, at_ns)
        return ()

    # -- orders

    def submit(self, broker_order_id: str, request: OrderRequest, at_ns: int) -> Sequence[Fill]:
        """Prepare and start the order in one step."""
        return self.start(self.prepare(broker_order_id, request, at_ns), at_ns)

    def prepare(self, broker_order_id: str, request: OrderRequest, at_ns: int) -> PaperOrder:
        """Check the order and hold its funds; raise VenueRejectedError if the venue declines it."""
        instrument = self._instruments[request.symbol]
        quote = self._check_form(request, instrument)
        wait_ms = self._config.latency_ms
        if self._config.latency_jitter_ms:
            wait_ms += self._config.latency_jitter_ms * self._random.random()
        order = PaperOrder(broker_order_id, request, at_ns + round(wait_ms * 1e6))
        if request.price is None:
            worst = quote or self._quote(request)
            depth = self._depth(request.symbol, at_ns)
            if depth is not None:
                worst = depth.worst_price(request.side, request.quantity) or worst
            order.worst = self._slipped(worst, request)
        self.account.hold(broker_order_id, request, order.worst, self._costs.of(instrument))
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
        order.remaining, order.fills = order.request.quantity - filled, fills
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

    def _match(self, symbol: str, at_ns: int, *, traded: bool = False) -> Sequence[Fill]:
        tick = self._ticks.get(symbol)
        if tick is None or not 0 < tick.price < _INFINITE:
            return ()
        fills: list[Fill] = []
        depth = self._depth(symbol, at_ns)
        for order in list(self._open[symbol].values()):
            if order.starts_ns > at_ns:
                continue
            book = None if depth is None or (traded and passed(order, tick)) else depth
            ends_now = order.request.time_in_force in FILL_AT_ONCE
            if not ends_now or self._may_fill(order, tick, book):
                for price, most in self._prices(order, tick, book):
                    quantity = self._take_volume(symbol, tick, min(most, order.remaining))
                    if quantity > 0:
                        if book is not None:
                            book.take(order.request.side, quantity)
                        fills.append(self._fill(order, price, quantity, at_ns))
            if ends_now and order.remaining > 0:
                self._close(order)
                self.cancelled.append(order.broker_order_id)
        return fills

    def _may_fill(self, order: PaperOrder, tick: Tick, depth: BookDepth | None) -> bool:
        """Return False for a FOK order that does not fill as a whole now."""
        if order.request.time_in_force is not TimeInForce.FOK:
            return True
        found = sum((most for _, most in self._prices(order, tick, depth)), _ZERO)
        return min(found, self._volume_of(order.request.symbol, tick)) >= order.remaining

    def _depth(self, symbol: str, at_ns: int) -> BookDepth | None:
        """Return what is left of a book that is fresh and no older than the last tick."""
        depth = self._books.get(symbol)
        if depth is None or not depth.book.is_fresh(at_ns / 1e9):
            return None
        tick = self._ticks.get(symbol)
        if tick is not None and depth.book.at < tick.at - MAX_BEHIND_TICK_S:
            return None
        return depth

    def _prices(
        self, order: PaperOrder, tick: Tick, depth: BookDepth | None
    ) -> Iterable[tuple[Decimal, Decimal]]:
        """Return the prices at which the order fills now, each with the most that fills there."""
        if depth is not None:
            return self._levels(order, depth)
        price = self._price(order, tick)
        if price is None:
            order.rested = True
            return ()
        return ((price, order.remaining),)

    def _levels(self, order: PaperOrder, depth: BookDepth) -> Iterator[tuple[Decimal, Decimal]]:
        request, limit, sign = order.request, order.request.price, order.request.side.sign
        for level, quantity in depth.left(request.side):
            if order.remaining <= 0 or (limit is not None and (limit - level) * sign < 0):
                break
            yield self._taken_at(order, level), quantity
        if order.remaining > 0:
            order.rested = limit is not None

    def _taken_at(self, order: PaperOrder, level: Decimal) -> Decimal:
        """Return the price at which an order fills against a level of the book."""
        request, limit = order.request, order.request.price
        if limit is not None and order.rested:
            return limit
        price = self._slipped(level, request)
        if limit is None:
            return price
        return min(price, limit) if request.side is Side.BUY else max(price, limit)

    def _price(self, order: PaperOrder, tick: Tick) -> Decimal | None:
        """Return the price at which the tick fills the order, or None."""
        request, limit = order.request, order.request.price
        quote, sign = quote_of(tick, request.side), request.side.sign
        if limit is None:
            return self._slipped(quote, request)
        if order.rested:
            through = (limit - quote) * sign >= 0 or (limit - exact(tick.price)) * sign > 0
            return limit if through else None
        if (limit - quote) * sign < 0:
            return None
        price = self._slipped(quote, request)
        return min(price, limit) if request.side is Side.BUY else max(price, limit)

    def _slipped(self, quote: Decimal, request: OrderRequest) -> Decimal:
        """Return a taker's price: the quote, worse by the slippage, rounded to a tick."""
        if not self._config.slippage_ticks and not self._bps:
            return quote
        ticks, side = self._instruments[request.symbol].ticks, request.side
        worse = ticks.size(quote) * self._config.slippage_ticks + quote * self._bps
        price = ticks.round(quote + side.sign * worse, side.opposite)
        if bar := self._bars.get(request.symbol):
            return max(bar[0], min(price, bar[1]))
        return price

    def _volume_of(self, symbol: str, tick: Tick) -> Decimal:
        """Return what the tick's share for paper orders has left."""
        if not self._share:
            return _UNLIMITED
        left = self._volume_left.get(symbol)
        if left is not None and left[0] is tick:
            return left[1]
        shared = self._share * exact(tick.volume if 0 < tick.volume < _INFINITE else 0)
        return self._instruments[symbol].floor_to_lot(shared)

    def _take_volume(self, symbol: str, tick: Tick, quantity: Decimal) -> Decimal:
        """Take up to `quantity` from the tick's share for paper orders; return what was taken."""
        if not self._share:
            return quantity
        left = self._volume_of(symbol, tick)
        taken = min(quantity, left)
        self._volume_left[symbol] = (tick, left - taken)
        return taken

    def _fill(self, order: PaperOrder, price: Decimal, quantity: Decimal, at_ns: int) -> Fill:
        request, instrument = order.request, self._instruments[order.request.symbol]
        order.remaining -= quantity
        order.fills += 1
        fill = Fill(
            trade_id=f"{order.broker_order_id}.{order.fills}",
            broker_order_id=order.broker_order_id,
            symbol=request.symbol,
            side=request.side,
            quantity=quantity,
            price=price,
            fee=self._costs.charge(instrument, request.side, price * quantity),
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

    def _check_form(self, request: OrderRequest, instrument: Instrument) -> Decimal | None:
        """Return the price that the value was checked with; None: any value is enough."""
        if request.quantity % instrument.lot and not self._sells_all(request):
            raise VenueRejectedError(
                f"{request.quantity} of {request.symbol} is no multiple of {instrument.lot:f}",
                "lot",
            )
        price = request.price
        if price is not None and not instrument.ticks.has(price):
            raise VenueRejectedError(f"{price} of {request.symbol} is not on a tick", "tick")
        if not (minimum := instrument.min_order_value):
            return None
        checked = price or self._quote(request)
        if (amount := checked * request.quantity) < minimum:
            raise VenueRejectedError(
                f"{amount} won is below the minimum of {minimum} won", BELOW_MINIMUM
            )
        return checked

    def _sells_all(self, request: OrderRequest) -> bool:
        """Return whether nothing is left after it: odd lots can be sold with the rest."""
        return request.side is Side.SELL and request.quantity == self.account.free(request.symbol)

    def _quote(self, request: OrderRequest) -> Decimal:
        tick = self._ticks.get(request.symbol)
        if tick is None or not 0 < tick.price < _INFINITE:
            raise VenueRejectedError(f"{request.symbol} has no price yet", "no_price")
        return quote_of(tick, request.side)

    def _fees(self, order: PaperOrder) -> FeeSchedule:
        return self._costs.of(self._instruments[order.request.symbol])


def passed(order: PaperOrder, tick: Tick) -> bool:
    """Return whether a trade at the tick's price went through the limit of a resting order."""
    limit = order.request.price
    if limit is None or not order.rested:
        return False
    return (limit - exact(tick.price)) * order.request.side.sign > 0


def quote_of(tick: Tick, side: Side) -> Decimal:
    """Return the opposite side's quote, or the last price if that side has none."""
    quote = tick.ask if side.sign > 0 else tick.bid
    return exact(quote if 0 < quote < _INFINITE else tick.price)
