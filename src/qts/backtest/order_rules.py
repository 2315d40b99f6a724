"""Rules of compiled orders: functions that numba compiles into the scan.

They repeat, in doubles and with a margin, what evaluate, the gate and the matching check of a
market order without a size; `compiled_orders.py` says what the margin is for. This module imports
numba, so that only the compiled mode may import it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba.extending import register_jitable

from qts.backtest.compiled_orders import (
    AVERAGE,
    BOUGHT,
    BUY_FEE,
    CASH,
    DAILY_LOSS,
    DAY_END,
    DUE,
    ENTERS,
    FILLED,
    HELD,
    HOLD,
    HOLDS,
    INTERVAL,
    LATENCY_NS,
    LATEST_S,
    LEAST_ENTRY,
    LEAST_EXIT,
    LOGGED,
    LOTS,
    MAX_EXPOSURE,
    MAX_QUANTITY,
    MAX_SYMBOL,
    MAX_SYMBOLS,
    MAX_VALUE,
    MOST,
    NEW_DAY,
    NEXT_POINT,
    OPEN,
    ORDERS,
    PER_DAY,
    POSITION_IN_LOG,
    PRICE,
    QUANTITY,
    REALISED,
    SAMPLE,
    SAMPLED,
    SELL_FEE,
    SIDE,
    SLACK,
    SOLD,
    STARTS,
    WAITING,
)
from qts.backtest.portfolio import DAY_S, SEOUL_S

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Let numba compile a function where a compiled one calls it."""
    found: F = register_jitable(function)
    return found


@compiled
def pass_timer(orders: Any, latest: Any, at: float, row: int, is_blocked: bool) -> bool:
    """Handle the timer as the engine does, if it only adds a point to the curve or begins a day."""
    money, counts = orders.money, orders.counts
    is_new_day = at >= money[DAY_END]
    if is_new_day and (counts[OPEN] > 0 or is_blocked or not 0.0 < money[DAY_END] <= at < LATEST_S):
        return False
    due, held = money[DUE], counts[HELD]
    if counts[LOGGED] + held + 4 >= len(orders.values):
        return False
    if due >= money[NEXT_POINT]:
        for each in range(held):
            symbol = orders.lists[0, each]
            _write(orders, PRICE, symbol, row, latest[symbol, 0])
        _write(orders, SAMPLED, 0, row, due)
        money[NEXT_POINT] = due + money[SAMPLE]
    if is_new_day:
        _write(orders, NEW_DAY, 0, row, at)
        money[DAY_END] = ((at + SEOUL_S) // DAY_S + 1) * DAY_S - SEOUL_S
        money[REALISED], counts[ORDERS] = 0.0, 0
    interval = money[INTERVAL]
    soon = max((np.floor(at / interval) + 1) * interval, np.nextafter(at, np.inf))
    sample = np.ceil(money[NEXT_POINT] / interval) * interval
    money[DUE] = min(max(soon, sample), money[DAY_END])
    return True


@compiled
def _write(orders: Any, kind: int, symbol: int, row: int, value: float) -> None:
    number = orders.counts[LOGGED]
    orders.log[number, 0] = kind
    orders.log[number, 1] = symbol
    orders.log[number, 2] = row
    orders.values[number] = value
    orders.counts[LOGGED] = number + 1


@compiled
def nanoseconds(at: float) -> Any:
    return np.int64(np.rint(at * 1e9))


@compiled
def fill(orders: Any, latest: Any, position: Any, symbol: int, row: int) -> None:
    """Fill the order of a symbol at the quote of its last tick."""
    whole, parts, money = orders.whole[symbol], orders.parts[symbol], orders.money
    quote = latest[symbol, 3] if whole[SIDE] > 0 else latest[symbol, 2]
    if not 0.0 < quote < np.inf:
        quote = latest[symbol, 0]
    _write(orders, FILLED, symbol, row, quote)
    orders.counts[OPEN] -= 1
    amount = parts[QUANTITY] * quote
    money[SLACK] += 1e-12 * (amount + abs(money[CASH]) + abs(money[REALISED]))
    if whole[SIDE] > 0:
        fee = amount * parts[BUY_FEE]
        money[CASH] -= amount + fee
        money[HOLDS] -= parts[HOLD]
        money[REALISED] -= fee
        parts[AVERAGE] = quote
        position[symbol] = parts[QUANTITY]
        _remove(orders, 1, symbol)
        _add(orders, 0, symbol)
    else:
        fee = amount * parts[SELL_FEE]
        money[CASH] += amount - fee
        money[REALISED] += (quote - parts[AVERAGE]) * parts[QUANTITY] - fee
        position[symbol] = 0.0
        _remove(orders, 0, symbol)
    whole[SIDE] = 0


@compiled
def _add(orders: Any, which: int, symbol: int) -> None:
    size = orders.counts[HELD + which]
    orders.lists[which, size] = symbol
    orders.counts[HELD + which] = size + 1


@compiled
def _remove(orders: Any, which: int, symbol: int) -> None:
    """Remove a symbol from a list; the others keep their order."""
    listed, size = orders.lists[which], orders.counts[HELD + which]
    first = 0
    while listed[first] != symbol:
        first += 1
    for each in range(first, size - 1):
        listed[each] = listed[each + 1]
    orders.counts[HELD + which] = size - 1


@compiled
def _decide(orders: Any, symbol: int, at: float, row: int, quote: float) -> None:
    counts, recent = orders.counts, orders.recent
    whole = orders.whole[symbol]
    whole[POSITION_IN_LOG] = counts[LOGGED]
    whole[STARTS] = nanoseconds(at) + np.int64(orders.money[LATENCY_NS])
    _write(orders, BOUGHT if whole[SIDE] > 0 else SOLD, symbol, row, quote)
    recent[counts[ORDERS] % len(recent)] = at
    counts[ORDERS] += 1
    counts[OPEN] += 1


@compiled
def try_exit(orders: Any, latest: Any, position: Any, symbol: int, before: float, row: int) -> bool:
    """Sell a position, if it is certain that this is approved; `before` is the tick before."""
    tick, parts, money = latest[symbol], orders.parts[symbol], orders.money
    at, bid, quantity = tick[4], tick[2], position[symbol]
    if not (0.0 < bid < np.inf and 0.0 < at < LATEST_S and at - before > 2e-6):
        return False
    if money[CASH] <= money[SLACK] or orders.counts[LOGGED] + 4 >= len(orders.values):
        return False
    if quantity * bid * (1 - 1e-9) < parts[LEAST_EXIT]:
        return False
    orders.whole[symbol, SIDE] = -1
    parts[QUANTITY] = quantity
    _decide(orders, symbol, at, row, bid)
    return True


@compiled
def _entry_quantity(parts: Any, money: Any, ask: float) -> float:
    """Return the quantity of an entry without a size; 0: not certain to the last lot."""
    by_value, most = money[MAX_VALUE] / ask, money[MAX_QUANTITY]
    if by_value > most * (1 + 1e-12):
        return float(parts[MOST])
    if by_value > most * (1 - 1e-12):
        return 0.0
    lots = by_value * parts[LOTS]
    whole, error = np.floor(lots), 1e-15 * lots
    if not 1.0 <= whole < 1e15 or lots - whole <= error or whole + 1 - lots <= error:
        return 0.0
    return float(whole / parts[LOTS])


@compiled
def try_entry(
    orders: Any, latest: Any, position: Any, symbol: int, before: float, row: int
) -> bool:
    """Buy a symbol, if it is certain that this is approved; `before` is the tick before."""
    tick, parts, money, counts = latest[symbol], orders.parts[symbol], orders.money, orders.counts
    at, bid, ask = tick[4], tick[2], tick[3]
    if not (0.0 < bid < np.inf and 0.0 < ask < np.inf and 0.0 < at < LATEST_S):
        return False
    if parts[ENTERS] == 0 or at - before <= 2e-6 or counts[LOGGED] + 4 >= len(orders.values):
        return False
    if counts[HELD] + counts[WAITING] >= counts[MAX_SYMBOLS] or counts[ORDERS] >= counts[PER_DAY]:
        return False
    recent = orders.recent
    if counts[ORDERS] >= len(recent) and recent[counts[ORDERS] % len(recent)] + 60.0 > at:
        return False
    quantity = _entry_quantity(parts, money, ask)
    value = quantity * ask
    if quantity == 0 or value * (1 - 1e-9) < parts[LEAST_ENTRY]:
        return False
    held = profit = waiting = 0.0
    for each in range(counts[HELD]):
        one = orders.lists[0, each]
        held += position[one] * latest[one, 0]
        profit += position[one] * (latest[one, 0] - orders.parts[one, AVERAGE])
    for each in range(counts[WAITING]):
        one = orders.lists[1, each]
        waiting += orders.parts[one, QUANTITY] * latest[one, 0]
    slack = money[SLACK] + 1e-9 * (held + waiting + value + abs(profit))
    cost, equity = value * (1 + parts[BUY_FEE]), money[CASH] + held - slack
    if not money[CASH] - money[HOLDS] - cost > slack:
        return False
    if not held + waiting + value + slack < equity * money[MAX_EXPOSURE]:
        return False
    if not value + slack < equity * money[MAX_SYMBOL]:
        return False
    if not money[REALISED] + profit - slack > -equity * money[DAILY_LOSS]:
        return False
    orders.whole[symbol, SIDE] = 1
    parts[QUANTITY], parts[HOLD] = quantity, cost
    money[HOLDS] += cost
    _add(orders, 1, symbol)
    _decide(orders, symbol, at, row, ask)
    return True
