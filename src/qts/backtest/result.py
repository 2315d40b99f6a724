"""Result of a backtest: what was traded, what was not and why, and everything that shaped it.

`result_frame` gives parts of it as frames of polars or pandas, for notebooks.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Literal

import msgspec

from qts.backtest.config import BacktestConfig
from qts.backtest.performance import EquityPoint, Performance, Trade
from qts.domain import Fill, RefusedError, check_name
from qts.pipeline import NOT_TRIGGERED
from qts.risk import OrderProposal

Library = Literal["polars", "pandas"]
Rows = dict[str, list[Any]]


class StrategyResult(msgspec.Struct, frozen=True, kw_only=True):
    """Part of one strategy in a backtest."""

    key: str
    params: dict[str, Any]
    signals: int
    orders: int
    fills: int
    trades: int
    profit: float  # of its completed trades
    refusals: dict[str, int]
    errors: int
    stopped: str  # why it was disabled, if it was
    realised: float = 0.0  # of all its fills, after fees; over all strategies, the account's
    fees: float = 0.0
    unrealised: float = 0.0
    exposure: float = 0.0  # value of its positions at the end


class DataInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Data that was played; equal digests mean equal data."""

    kind: str  # ticks, or the timeframe of bars
    symbols: int
    events: int
    began: datetime
    ended: datetime
    digest: str
    missing: tuple[str, ...] = ()  # symbols that were asked for and have no event
    source: str = ""  # where it was read from


class BacktestResult(msgspec.Struct, frozen=True, kw_only=True):
    """Figures, trades, orders and fills of a backtest, with the settings and data behind them."""

    strategies: tuple[StrategyResult, ...]
    way: Literal["compiled", "generic"]
    data: DataInfo
    settings: BacktestConfig
    seconds: float  # without reading or generating the tape
    tape_seconds: float
    performance: Performance
    points: tuple[EquityPoint, ...]
    benchmark: tuple[EquityPoint, ...]  # every symbol bought in equal parts and held, no costs
    trades: Sequence[Trade]
    still_open: tuple[Trade, ...]
    proposals: Sequence[OrderProposal]
    fills: Sequence[Fill]
    refusals: dict[str, int]
    expired: dict[str, int]  # orders that ended without a complete fill
    cuts: dict[str, int]  # orders that are smaller than their signal
    trips: dict[str, int]
    command: str = ""  # that repeats it

    @property
    def strategy(self) -> str:
        """Keys of the strategies, separated by commas."""
        return ", ".join(each.key for each in self.strategies)

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the strategy; of several, by their keys."""
        if len(self.strategies) == 1:
            return self.strategies[0].params
        return {each.key: each.params for each in self.strategies}

    @property
    def symbols(self) -> int:
        """Number of symbols in the data."""
        return self.data.symbols

    @property
    def events(self) -> int:
        """Number of ticks or bars that were played."""
        return self.data.events

    @property
    def began(self) -> datetime:
        """Time of the first event."""
        return self.data.began

    @property
    def ended(self) -> datetime:
        """Time of the last event."""
        return self.data.ended

    @property
    def signals(self) -> int:
        """Signals of all strategies."""
        return sum(each.signals for each in self.strategies)

    @property
    def errors(self) -> int:
        """Exceptions that strategies raised."""
        return sum(each.errors for each in self.strategies)

    @property
    def stopped(self) -> str:
        """Why strategies were disabled, if they were."""
        texts = [(each.key, each.stopped) for each in self.strategies if each.stopped]
        if len(self.strategies) == 1:
            return texts[0][1] if texts else ""
        return "; ".join(f"{key}: {text}" for key, text in texts)

    @property
    def events_per_s(self) -> float:
        """Events per second of the run, without reading the data."""
        return self.events / self.seconds if self.seconds else 0.0

    @property
    def digest(self) -> str:
        """Return a hash of the orders, fills and equity curve."""
        content = (tuple(self.proposals), tuple(self.fills), self.points)
        return hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:16]

    @property
    def warnings(self) -> list[str]:
        """Return what a reader must know before the figures: orders that did not fill."""
        found = []
        if self.data.missing:
            found.append(f"no data in this time: {', '.join(self.data.missing)}")
        if self.signals and not self.fills:
            reasons = f"; {counted(self.refusals)}" if self.refusals else ""
            found.append(
                f"no fill: {self.signals:,} signals, {len(self.proposals):,} orders{reasons}"
            )
        expired = {name: count for name, count in self.expired.items() if name != NOT_TRIGGERED}
        if expired:
            number = sum(expired.values())
            found.append(
                f"{number:,} of {len(self.proposals):,} orders not filled: {counted(expired)}"
            )
        return found

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the page of the report, in a frame with its own styles."""
        from qts.backtest.report import render_html

        page = escape(render_html(self))
        return f'<iframe srcdoc="{page}" sandbox style="width:100%;height:40rem;border:0"></iframe>'


def counted(reasons: dict[str, int]) -> str:
    """Return reasons with their numbers, the most frequent first."""
    ordered = sorted(reasons.items(), key=lambda item: -item[1])
    return ", ".join(f"{count:,} x {reason}" for reason, count in ordered)


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
