"""Results as frames of polars or pandas, for notebooks."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

from qts.backtest.result import BacktestResult
from qts.domain import RefusedError, check_name

Library = Literal["polars", "pandas"]
Rows = dict[str, list[Any]]


def result_frame(result: BacktestResult, what: str, library: Library = "polars") -> Any:
    """Return the equity, trades, fills or orders of a result as a frame.

    Times are in UTC, prices and quantities floats; the exact numbers stay in the result.
    """
    check_name("frame", what, list(_TABLES))
    check_name("library", library, ["polars", "pandas"])
    try:
        module = importlib.import_module(library)
    except ImportError:
        raise RefusedError(f"{library} is not installed; pip install {library}") from None
    return module.DataFrame(_TABLES[what](result))


def _equity(result: BacktestResult) -> Rows:
    return {
        "at": [datetime.fromtimestamp(point.at, UTC) for point in result.points],
        "equity": [point.equity for point in result.points],
        "invested": [point.invested for point in result.points],
    }


def _trades(result: BacktestResult) -> Rows:
    columns: Rows = {
        name: [getattr(trade, name) for trade in result.trades]
        for name in ("strategy", "symbol", "opened_at", "closed_at", "reason")
    }
    for name in ("quantity", "entry", "exit", "fees", "profit"):
        columns[name] = [float(getattr(trade, name)) for trade in result.trades]
    return columns


def _fills(result: BacktestResult) -> Rows:
    columns: Rows = {
        "at": [fill.at for fill in result.fills],
        "symbol": [fill.symbol for fill in result.fills],
        "side": [str(fill.side) for fill in result.fills],
        "order": [fill.broker_order_id for fill in result.fills],
    }
    for name in ("quantity", "price", "fee"):
        columns[name] = [float(getattr(fill, name)) for fill in result.fills]
    return columns


def _orders(result: BacktestResult) -> Rows:
    orders = result.proposals
    return {
        "decided_at": [each.decided_at for each in orders],
        "strategy": [each.strategy_key for each in orders],
        "symbol": [each.symbol for each in orders],
        "side": [str(each.side) for each in orders],
        "type": [str(each.type) for each in orders],
        "quantity": [float(each.quantity) for each in orders],
        "price": [None if each.price is None else float(each.price) for each in orders],
        "intent_type": [str(each.intent_type) for each in orders],
    }


_TABLES: dict[str, Callable[[BacktestResult], Rows]] = {
    "equity": _equity,
    "trades": _trades,
    "fills": _fills,
    "orders": _orders,
}
