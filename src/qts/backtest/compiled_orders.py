"""Orders that the compiled scan takes itself, where the gate is certain to approve them.

    the step signals ──▶ every rule holds with a margin ──▶ taken: DECIDED in the log
                     └─▶ in doubt ──▶ the scan returns, and Python decides
    its next price   ──▶ FILLED in the log
    the timer is due ──▶ a PRICE for each position, and SAMPLED
    a new day        ──▶ NEW_DAY, if no order is open

The invariant: the result of a backtest is the same with and without these orders, whatever the
tape, the parameters and the limits. The scan takes an order only if it can prove that the steps,
the gate and the matching would send it with this very quantity and fill it in full at this very
quote. What it compares are doubles, which differ from the decimals of the account: it takes an
order only if the comparison holds by more than the largest error (`SLACK`). Cash counts fees that
are not rounded down, and is a lower bound. In doubt the scan returns.

Before Python reads the account, the log is applied to it in decimals (`CoreLog`), and orders that
still wait for a price become open orders of the order manager. A configuration that is not
proven here has no compiled orders at all (`is_proven`).
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qts._native import AppliedLog, OrderLog
from qts.backtest.config import BacktestConfig
from qts.backtest.late_values import RowPart
from qts.domain import Fill, Instruments, Side
from qts.risk import RiskLimits

if TYPE_CHECKING:
    from qts.backtest.order_log import PlainTerms

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

BOUGHT, SOLD, FILLED, SAMPLED, PRICE, NEW_DAY = range(6)  # kinds of a row in the log
ROW = 2  # column of the log: the row of the chunk
LOG_ROWS = 8192
MIN_LATENCY_MS = 0.1  # an order never fills on its own tick, nor has two signals of one time
_MIN_INTERVAL_S = _MIN_TTL_S = 0.001
LATEST_S = 9e9  # nanoseconds of a later time do not fit into 64 bits
LEAST_ROWS = 8  # fewer rows of a log are faster in Python

# Columns of `whole`, by symbol:
SIDE, STARTS, POSITION_IN_LOG = 0, 1, 2
# Columns of `parts`, by symbol; the first seven do not change:
ENTERS, LOTS, MOST, LEAST_ENTRY, LEAST_EXIT, BUY_FEE, SELL_FEE, QUANTITY, HOLD, AVERAGE = range(10)
# Indices into `money`; the first eight do not change:
MAX_VALUE, MAX_QUANTITY, MAX_EXPOSURE, MAX_SYMBOL, DAILY_LOSS, LATENCY_NS = range(6)
INTERVAL, SAMPLE = 6, 7
DUE, NEXT_POINT, DAY_END, CASH, HOLDS, REALISED, SLACK = range(8, 15)
# Indices into `counts`; the first two do not change:
MAX_SYMBOLS, PER_DAY, LOGGED, HELD, WAITING, ORDERS, OPEN = range(7)
_ONE = Decimal(1)
# The lot, the largest quantity, the fees of a purchase and of a sale, and the places of a fee.
_Terms = tuple[Decimal, Decimal, Decimal, Decimal, int]


class OrderArrays(NamedTuple):
    """Arrays that the compiled scan keeps its orders in."""

    whole: Integers  # a row for each symbol
    parts: Floats  # a row for each symbol
    lists: Integers  # symbols that are held, in the order of their entry, and that wait to be
    money: Floats
    counts: Integers
    recent: Floats  # times of the last orders of the day, a ring; its size is the limit a minute
    log: Integers  # kind, symbol, row of the chunk
    values: Floats  # of the log: the quote of an order or fill, the time of a sample, a price

    @classmethod
    def of(cls, symbols: int, limits: RiskLimits, config: BacktestConfig) -> OrderArrays:
        found = cls(
            np.zeros((symbols, 3), np.int64),
            np.zeros((symbols, 10)),
            np.zeros((2, symbols), np.int64),
            np.zeros(15),
            np.zeros(7, np.int64),
            np.zeros(min(limits.orders_per_minute, limits.orders_per_day)),
            np.zeros((LOG_ROWS + 2 * symbols, 3), np.int64),
            np.zeros(LOG_ROWS + 2 * symbols),
        )
        found.money[: INTERVAL + 2] = (
            float(limits.max_order_value),
            float(limits.max_quantity),
            float(limits.max_exposure),
            float(limits.max_symbol_exposure),
            float(limits.daily_loss),
            round(config.paper.latency_ms * 1e6),
            config.interval_s,
            config.sample_s,
        )
        found.counts[:LOGGED] = limits.max_open_symbols, limits.orders_per_day
        return found


def has_plain_fills(config: BacktestConfig) -> bool:
    """Return whether a market order fills at once and in full at its quote, before it expires."""
    paper = config.paper
    return config.signal_ttl_s >= _MIN_TTL_S and not (
        paper.slippage_ticks or paper.slippage_bps or paper.volume_share or paper.latency_jitter_ms
    )


def is_proven(config: BacktestConfig) -> bool:
    """Return whether the scan may take orders with these settings at all."""
    return (
        has_plain_fills(config)
        and config.paper.latency_ms >= MIN_LATENCY_MS
        and not config.use_stops
        and not config.instances
        and config.interval_s >= _MIN_INTERVAL_S
    )


class LogAccount(NamedTuple):
    """Account before a log: what the core has to know of it."""

    positions: dict[str, Fill]  # the only purchase of each, by symbol
    # Cash, what the day has realised after fees, and what the strategy has realised and paid.
    amounts: tuple[Decimal, Decimal, Decimal, Decimal]
    hold_decimals: int  # places of the cash that is free


class OrderPart(RowPart):
    """Proposals of a log."""

    def __init__(self, log: AppliedLog, key: str, ttl_s: float) -> None:
        self._log = log
        self._key = key
        self._ttl_s = ttl_s

    def __len__(self) -> int:
        return self._log.orders

    def rows(self) -> list[tuple[Any, ...]]:
        key, ttl_s = self._key, self._ttl_s
        return [(key, ttl_s, *row, key) for row in self._log.order_rows()]

    def column(self, name: str) -> list[Any] | None:
        return [self._key] * len(self) if name == "strategy_key" else None


class FillPart(RowPart):
    """Fills of a log; `first` is the number of its first order."""

    def __init__(self, log: AppliedLog, first: int) -> None:
        self._log = log
        self._first = first

    def __len__(self) -> int:
        return self._log.fills

    def rows(self) -> list[tuple[Any, ...]]:
        return list(self._log.fill_rows(self._first))

    def total(self, name: str) -> tuple[Decimal, Decimal] | None:
        sums = {"amount": self._log.traded, "fee": self._log.charged}
        return (sums[name], sums[name]) if name in sums else None


class TradePart(RowPart):
    """Trades of a log; `before` has the purchases of the positions from before it."""

    def __init__(self, log: AppliedLog, first: int, key: str, before: Sequence[Fill]) -> None:
        self._log = log
        self._first = first
        self._key = key
        self._before = before

    def __len__(self) -> int:
        return self._log.trades

    def rows(self) -> list[tuple[Any, ...]]:
        fills, before = self._log.fill_rows(self._first), self._before
        return [
            (fills[entry] if entry >= 0 else before[-1 - entry], fills[end], self._key)
            for entry, end in self._log.trade_places()
        ]

    def column(self, name: str) -> list[Any] | None:
        return [self._key] * len(self) if name == "strategy" else None

    def floats(self, name: str) -> list[float] | None:
        return self._log.profits() if name == "profit" else None

    def total(self, name: str) -> tuple[Decimal, Decimal] | None:
        return (self._log.profit, self._log.profit_size) if name == "profit" else None


class CoreLog:
    """Applies logs in the C++ core, in whole numbers that are exact.

    The arithmetic, its digits and its places are those of `order_log.py`, which applies a log where
    28 digits may not be enough, or where a position is of more than one fill. What the core returns
    stays in its columns; rows, and proposals, fills and trades of them, are made when somebody
    reads them.
    """

    def __init__(self, limits: RiskLimits, instruments: Instruments, terms: PlainTerms) -> None:
        self._instruments = instruments
        self._terms = terms
        self._core: OrderLog | None = None  # None: the limits have too many digits for it
        self._limits = limits
        self._indices: dict[str, int] = {}

    def grow(self, symbols: Sequence[str]) -> None:
        """Have the terms of all these symbols."""
        places: dict[object, int] = {}
        terms: list[_Terms] = []
        of_symbol = []
        for symbol in symbols:
            instrument = self._instruments[symbol]
            key = instrument.lot, instrument.market, instrument.sale_tax
            place = places.get(key)
            if place is None:
                place = places[key] = len(terms)
                terms.append(self._terms_of(symbol))
            of_symbol.append(place)
        self._indices = {symbol: index for index, symbol in enumerate(symbols)}
        try:
            self._core = OrderLog(self._limits.max_order_value, self._limits.max_quantity)
            self._core.set_symbols(list(symbols), terms, of_symbol)
        except ValueError:  # too many digits
            self._core = None

    def _terms_of(self, symbol: str) -> _Terms:
        instrument, fees = self._instruments[symbol], self._terms.fees_of(symbol)
        most = instrument.floor_to_lot(self._limits.max_quantity)
        decimals = -int(self._terms.fee(symbol, True, _ONE).as_tuple().exponent)
        rates = fees.of(Side.BUY, _ONE), fees.of(Side.SELL, _ONE)
        return instrument.lot, most, *rates, decimals

    def apply(
        self,
        rows: npt.NDArray[np.int64],
        values: npt.NDArray[np.float64],
        at: npt.NDArray[np.float64],
        account: LogAccount,
    ) -> AppliedLog | None:
        """Apply rows to an account, `at` are the times of the chunk; None: the core cannot."""
        if self._core is None:
            return None
        positions = [
            (self._indices[symbol], fill.quantity, fill.price, fill.fee)
            for symbol, fill in account.positions.items()
        ]
        return self._core.apply(rows, values, at, positions, account.amounts, account.hold_decimals)
