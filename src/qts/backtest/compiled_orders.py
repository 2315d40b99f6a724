"""Orders that the compiled scan takes itself, where the gate is certain to approve them.

    the step signals ──▶ every rule holds with a margin ──▶ taken: DECIDED in the log
                     └─▶ in doubt ──▶ the scan returns, and Python decides
    its next price   ──▶ FILLED in the log
    the timer is due ──▶ a PRICE for each position, and SAMPLED

The invariant: the result of a backtest is the same with and without these orders, whatever the
tape, the parameters and the limits. The scan takes an order only if it can prove that the steps,
the gate and the matching would send it with this very quantity and fill it in full at this very
quote. What it compares are doubles, which differ from the decimals of the account: it takes an
order only if the comparison holds by more than the largest error (`SLACK`). Cash counts fees that
are not rounded down, and is a lower bound. In doubt the scan returns.

Before Python reads the account, the log is applied to it in decimals (`order_log.py`), and orders
that still wait for a price become open orders of the order manager. A configuration that is not
proven here has no compiled orders at all (`is_proven`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qts.backtest.config import BacktestConfig
from qts.risk import RiskLimits

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

BOUGHT, SOLD, FILLED, SAMPLED, PRICE = 0, 1, 2, 3, 4  # kinds of a row in the log
LOG_ROWS = 8192
MIN_LATENCY_MS = 0.1  # an order never fills on its own tick, nor has two signals of one time
_MIN_INTERVAL_S = _MIN_TTL_S = 0.001
LATEST_S = 9e9  # nanoseconds of a later time do not fit into 64 bits

# Columns of `whole`, by symbol:
SIDE, STARTS, POSITION_IN_LOG = 0, 1, 2
# Columns of `parts`, by symbol; the first seven do not change:
ENTERS, LOTS, MOST, LEAST_ENTRY, LEAST_EXIT, BUY_FEE, SELL_FEE, QUANTITY, HOLD, AVERAGE = range(10)
# Indices into `money`; the first eight do not change:
MAX_VALUE, MAX_QUANTITY, MAX_EXPOSURE, MAX_SYMBOL, DAILY_LOSS, LATENCY_NS = range(6)
INTERVAL, SAMPLE = 6, 7
DUE, NEXT_POINT, DAY_END, CASH, HOLDS, REALISED, SLACK = range(8, 15)
# Indices into `counts`; the first two do not change:
MAX_SYMBOLS, PER_DAY, LOGGED, HELD, WAITING, ORDERS = range(6)


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
            np.zeros(6, np.int64),
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
