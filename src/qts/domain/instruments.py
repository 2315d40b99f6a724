"""Markets and instruments: prices and fees, what a symbol is, and the rules of its class.

Prices are ticks, bars and order books. The rules of a class are ticks, lot, minimum, session and
tax; those of a symbol are those of its instrument.

A venue's own lists say what an instrument is (`fetch_kis_instruments`, `fetch_upbit_instruments` of
`qts.venues`). No rule derives anything from the spelling of a symbol: a symbol that no list has is
an UNKNOWN instrument, in which no position can be opened or enlarged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from qts.domain.errors import RefusedError, nearest_name
from qts.domain.orders import Side

WON = "KRW"
KRX_SESSION, ALWAYS_OPEN = "krx", "always"
_MAX_REMEMBERED = 10_000  # unknown symbols, which strategies may make up

BOOK_MAX_AGE_S = 10.0  # an older order book is not used
_CLOCK_STEP_S = 0.001  # rounding of two readings of a clock


class Market(StrEnum):
    KRX = "KRX"
    UPBIT = "UPBIT"
    OTHER = "OTHER"  # of a venue that a package adds


class Tick(msgspec.Struct, frozen=True, gc=False):
    """Price update of a symbol, the same from the feed to the strategies and in PRICE_TICK.

    Times are in seconds since the Unix epoch. `at` is when QTS received the update, by the clock
    that orders, signals and ages are measured with; `venue_at` is when the last trade happened by
    the venue's clock, 0 where the venue sends no time. A tick of the feed has the last price as
    the bid or ask that the venue did not send.
    """

    symbol: str
    price: float
    volume: float = 0.0  # traded since the previous tick of the symbol
    bid: float = 0.0
    ask: float = 0.0
    at: float = 0.0
    venue_at: float = 0.0


@lru_cache(65_536, typed=True)
def exact_decimal(number: float) -> Decimal:
    """Return a number as it is written: 0.1 is one tenth. Prices repeat, so they are kept."""
    return Decimal(str(number))


class BookLevel(NamedTuple):
    price: float
    quantity: float


class OrderBook(msgspec.Struct, frozen=True, gc=False):
    """Order book of a symbol, best levels first; the payload of ORDERBOOK_UPDATE.

    `at` is when QTS received it, `venue_at` the venue's time, 0 where it sends none.
    """

    symbol: str
    bids: tuple[BookLevel, ...] = ()
    asks: tuple[BookLevel, ...] = ()
    at: float = 0.0
    venue_at: float = 0.0

    def is_fresh(self, now: float) -> bool:
        """Return whether it may be used at `now`, in seconds since the Unix epoch."""
        return -_CLOCK_STEP_S <= now - self.at <= BOOK_MAX_AGE_S


class Timeframe(StrEnum):
    """Length of a bar; `1d` is a trading day of the market."""

    S1 = "1s"
    M1 = "1m"
    M3 = "3m"
    M5 = "5m"
    M15 = "15m"
    H1 = "1h"
    D1 = "1d"

    @property
    def seconds(self) -> int:
        """Length in seconds; a day has 86,400, whatever its session."""
        return _TIMEFRAME_S[self]


class Bar(NamedTuple):
    """Prices of a symbol over a timeframe.

    `at` is the close of the bar in seconds since the Unix epoch, from which on the bar is known.
    A bar of seconds, minutes or hours starts at `at - timeframe.seconds`; a day closes at the end
    of the regular session (KRX) or at midnight UTC (Upbit).
    """

    symbol: str
    timeframe: Timeframe
    at: float
    open: float
    high: float
    low: float
    close: float
    volume: float
    value: float = 0.0
    """Sum of price times volume; 0 where the source has none."""


_TIMEFRAME_S = {
    Timeframe.S1: 1, Timeframe.M1: 60, Timeframe.M3: 180, Timeframe.M5: 300,
    Timeframe.M15: 900, Timeframe.H1: 3600, Timeframe.D1: 86_400,
}  # fmt: skip

# (upper price bound, tick size); the last has no bound. KOSPI and KOSDAQ since 2023-01-25.
KRX_TICKS = (
    ("2000", "1"), ("5000", "5"), ("20000", "10"), ("50000", "50"), ("200000", "100"),
    ("500000", "500"), ("Infinity", "1000"),
)  # fmt: skip
# KRW markets since 2025-07-31.
UPBIT_TICKS = (
    ("0.0001", "0.00000001"), ("0.001", "0.000001"), ("0.01", "0.00001"), ("0.1", "0.0001"),
    ("1", "0.001"), ("10", "0.01"), ("100", "0.1"), ("5000", "1"), ("10000", "5"),
    ("50000", "10"), ("100000", "50"), ("500000", "100"), ("1000000", "500"),
    ("Infinity", "1000"),
)  # fmt: skip


class FeeSchedule(msgspec.Struct, frozen=True):
    """Fee and sales tax of a fill, as fractions of its amount."""

    fee: Decimal
    sale_tax: Decimal

    def of(self, side: Side, amount: Decimal) -> Decimal:
        return amount * (self.fee + (self.sale_tax if side is Side.SELL else 0))


class InstrumentClass(StrEnum):
    """What an instrument is. FUND: a listed fund that is no ETF; RIGHT: a subscription right."""

    STOCK = "STOCK"
    REIT = "REIT"
    ETF = "ETF"
    ETN = "ETN"
    ELW = "ELW"
    FUND = "FUND"
    RIGHT = "RIGHT"
    COIN = "COIN"
    OTHER = "OTHER"
    UNKNOWN = "UNKNOWN"


class TickSizes:
    """Tick sizes by price: rows of an upper bound and the tick size below it."""

    __slots__ = ("_bounds", "_sizes")

    def __init__(self, rows: Iterable[tuple[str, str]]) -> None:
        pairs = list(rows)
        self._bounds = [Decimal(bound) for bound, _ in pairs]
        self._sizes = [Decimal(size) for _, size in pairs]

    def size(self, price: Decimal) -> Decimal:
        return self._sizes[bisect_right(self._bounds, price)]

    def has(self, price: Decimal) -> bool:
        """Return whether the price is on a tick."""
        return price > 0 and price % self.size(price) == 0

    def round(self, price: Decimal, side: Side | None = None) -> Decimal:
        """Return the nearest price on a tick; with a side, the nearest that is not worse for us."""
        rounding = ROUND_HALF_EVEN
        if side is not None:
            rounding = ROUND_FLOOR if side is Side.BUY else ROUND_CEILING
        size = self.size(price)
        return max(size, (price / size).quantize(Decimal(1), rounding) * size)


# By name, as stored. ETF and ETN since December 2023; ELW at any price.
TICK_TABLES = {
    "krx-stock": TickSizes(KRX_TICKS),
    "krx-etp": TickSizes([("2000", "1"), ("Infinity", "5")]),
    "krx-elw": TickSizes([("Infinity", "5")]),
    "upbit-krw": TickSizes(UPBIT_TICKS),
    "unknown": TickSizes([("Infinity", "0.00000001")]),
}


class _ClassRules(NamedTuple):
    tick_table: str
    sale_tax: Decimal  # since 2026-01-01
    day_limit: Decimal | None  # largest move from the base price in a day


_STOCK_RULES = _ClassRules("krx-stock", Decimal("0.0020"), Decimal("0.30"))
# The limit of an ETF is 30 % times its leverage, which the lists do not state: the widest is used.
_ETP_RULES = _ClassRules("krx-etp", Decimal(0), Decimal("0.60"))
_RULES = {
    InstrumentClass.ETF: _ETP_RULES,
    InstrumentClass.ETN: _ETP_RULES,
    InstrumentClass.ELW: _ClassRules("krx-elw", Decimal(0), None),
    InstrumentClass.COIN: _ClassRules("upbit-krw", Decimal(0), None),
    InstrumentClass.UNKNOWN: _ClassRules("unknown", _STOCK_RULES.sale_tax, None),
}


class Instrument(msgspec.Struct, frozen=True, kw_only=True):
    """A tradable symbol of a venue, with the rules that its orders follow."""

    symbol: str
    venue: str  # "kis", "upbit"; "" of an unknown instrument
    market: Market
    board: str  # KOSPI, KOSDAQ; the quote currency at Upbit
    name: str = ""
    name_en: str = ""
    currency: str = WON
    kind: InstrumentClass = msgspec.field(name="class")
    tick_table: str  # a name in TICK_TABLES
    lot: Decimal
    min_order_value: Decimal = Decimal(0)
    session: str = KRX_SESSION
    sale_tax: Decimal = Decimal(0)  # as a fraction of a sale's amount
    base_price: Decimal | None = None  # that the list states for its day
    listed_shares: int | None = None
    halted: bool = False
    administrative: bool = False
    liquidation: bool = False  # last trades before a delisting
    caution: bool = False  # the venue warns of it
    delisted: bool = False  # missing in the venue's newest list

    def __post_init__(self) -> None:
        if self.tick_table not in TICK_TABLES:
            raise ValueError(f"tick_table {self.tick_table!r}: expected {', '.join(TICK_TABLES)}")
        if self.lot <= 0:
            raise ValueError(f"lot {self.lot}: expected more than 0")

    @property
    def ticks(self) -> TickSizes:
        return TICK_TABLES[self.tick_table]

    @property
    def title(self) -> str:
        return self.name or self.name_en or self.symbol

    @property
    def status(self) -> str:
        """Return the status flags as words; empty: traded normally."""
        flags = ("delisted", "halted", "liquidation", "administrative", "caution")
        return ", ".join(flag for flag in flags if getattr(self, flag))

    @property
    def orders_end_with_day(self) -> bool:
        return self.session != ALWAYS_OPEN

    @property
    def entry_block(self) -> str:
        """Return why no position may be opened or enlarged in it; empty: it may."""
        if self.kind is InstrumentClass.UNKNOWN:
            return "no list of the venue has it"
        if self.delisted or self.halted:
            return "delisted" if self.delisted else "halted"
        if self.liquidation:
            return "in liquidation trading"
        return "" if self.currency == WON else f"traded in {self.currency}, not in won"

    def floor_to_lot(self, quantity: Decimal) -> Decimal:
        return (quantity / self.lot).to_integral_value(ROUND_FLOOR) * self.lot

    def daily_limits(self, base: Decimal) -> tuple[Decimal, Decimal] | None:
        """Return the day's lowest and highest price around a base price; None: no limits."""
        limit = _RULES.get(self.kind, _STOCK_RULES).day_limit
        if limit is None:
            return None
        step = base * limit
        step -= step % self.ticks.size(base)
        low, high = base - step, base + step
        return self.ticks.round(low, Side.SELL), self.ticks.round(high, Side.BUY)


def krx_instrument(
    symbol: str, kind: InstrumentClass = InstrumentClass.STOCK, **more: Any
) -> Instrument:
    """Return an instrument of the KRX, with the rules of its class."""
    rules = _RULES.get(kind, _STOCK_RULES)
    given: dict[str, Any] = {
        "venue": "kis",
        "board": "KOSPI",
        "lot": Decimal(1),
        "sale_tax": rules.sale_tax,
    } | more
    return Instrument(
        symbol=symbol, market=Market.KRX, kind=kind, tick_table=rules.tick_table, **given
    )


def upbit_instrument(symbol: str, **more: Any) -> Instrument:
    """Return an instrument of Upbit's won market."""
    return Instrument(
        symbol=symbol,
        venue="upbit",
        market=Market.UPBIT,
        board=WON,
        kind=InstrumentClass.COIN,
        tick_table="upbit-krw",
        lot=Decimal("0.00000001"),
        min_order_value=Decimal(5000),
        session=ALWAYS_OPEN,
        **more,
    )


def assumed_instrument(symbol: str) -> Instrument:
    """Return a plain instrument for data that names no venue: Upbit's symbols have a dash.

    For the edge where such data enters (files, backtests); no rule of a run uses it.
    """
    return upbit_instrument(symbol) if "-" in symbol else krx_instrument(symbol)


def unknown_instrument(symbol: str) -> Instrument:
    """Return the instrument of a symbol that no list has: it can be sold, and not bought."""
    return krx_instrument(symbol, InstrumentClass.UNKNOWN, venue="", board="")


class Instruments:
    """Instruments by symbol. A refresh replaces all of them at once, and every reader sees it.

    `default` makes the instrument of a symbol that is not among them. May be read from any thread.
    """

    def __init__(
        self,
        known: Iterable[Instrument] = (),
        default: Callable[[str], Instrument] = unknown_instrument,
    ) -> None:
        self._default = default
        self.replace(known)

    def replace(self, known: Iterable[Instrument]) -> None:
        self._known = {each.symbol: each for each in known}
        self._found = self._known.copy()  # and defaults
        self._texts: dict[str, str] = {}

    def __getitem__(self, symbol: str) -> Instrument:
        """Return the instrument; the default's where none is known."""
        found = self._found.get(symbol)
        if found is None:
            if len(self._found) - len(self._known) >= _MAX_REMEMBERED:
                self._found = self._known.copy()
            found = self._found[symbol] = self._default(symbol)
        return found

    def __contains__(self, symbol: object) -> bool:
        return symbol in self._known

    def __iter__(self) -> Iterator[Instrument]:
        return iter(self._known.values())

    def __len__(self) -> int:
        return len(self._known)

    def name(self, symbol: str) -> str:
        """Return the name of a symbol; empty where none is known."""
        found = self._known.get(symbol)
        return "" if found is None else found.name or found.name_en

    def check(self, symbol: str) -> None:
        """Raise RefusedError for a symbol that is not known, with the nearest one that is."""
        if symbol not in self._known:
            raise RefusedError(f"symbol {symbol!r} is unknown{self.nearest(symbol)}")

    def entry_block(self, symbol: str) -> str:
        """Return why no position may be opened in the symbol; empty: it may."""
        block = self[symbol].entry_block
        return block + self.nearest(symbol) if block and symbol not in self._known else block

    def nearest(self, symbol: str) -> str:
        """Return the end of a sentence that names the most similar symbol; empty: there is none."""
        texts = self._texts
        if symbol not in texts:
            if len(texts) >= _MAX_REMEMBERED:
                texts.clear()
            near = nearest_name(symbol, self._known)
            texts[symbol] = f"; did you mean {self[near].symbol} {self.name(near)}?" if near else ""
        return texts[symbol]
