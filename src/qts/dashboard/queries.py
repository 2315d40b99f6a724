"""Read-only queries of the pages and of the API.

A public method is a query: its annotations are its parameters and its document, its docstring the
description that programs read.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from qts.backtest import Trade, show_job
from qts.cache import read_raw
from qts.dashboard import pages
from qts.dashboard.actions import ActionLog
from qts.dashboard.hub import DashboardSources, Hub
from qts.dashboard.pages import (
    FillPosition,
    OrderPosition,
    RowPosition,
    cut_page,
    decode_cursor,
)
from qts.dashboard.results import (
    TRADE_SPANS,
    TradesView,
    group_trades,
    load_curve,
    load_day_profit,
    load_trades,
    to_csv,
)
from qts.dashboard.run_records import Candles, LogFiles, LogsPage
from qts.dashboard.runs import RunsPage, load_runs
from qts.database import Row
from qts.domain import Clock, OperationError
from qts.events import DeadLetterAdmin
from qts.notify import AlertStore
from qts.orders import OrderRow, list_orders, list_positions, order_history
from qts.outbox import OutboxConfig, paused_streams, stream_depths
from qts.risk import FailSafe, SafetyLogEntry
from qts.router import load_last_report

_SIGNAL = (
    "SELECT s.id, s.strategy_key, s.symbol, s.side, s.reason, s.decided_at, s.created_at,"
    " i.approved_at, i.expires_at, i.updated_at AS intent_updated_at"
    " FROM signal s JOIN order_intent i ON i.signal_id = s.id WHERE i.id = $1"
)
# Newest first. $3 symbol or null, $4 since, $5 limit, $6 to $9 the position of the page before.
_FILLS = (
    "SELECT broker, account, trade_id, broker_order_id, symbol, side, quantity, price, fee,"
    " realised_pnl, traded_at FROM fill"
    " WHERE broker = $1 AND account = $2 AND ($3::text IS NULL OR symbol = $3) AND traded_at > $4"
    " AND ($6::timestamptz IS NULL"
    ' OR (traded_at, broker COLLATE "C", account COLLATE "C", trade_id COLLATE "C")'
    " < ($6, $7, $8, $9))"
    ' ORDER BY traded_at DESC, trade_id COLLATE "C" DESC LIMIT $5'
)
_EVER = datetime.min.replace(tzinfo=UTC)
_WEEK_S = 7 * 86_400.0
_NAMES = (
    "SELECT DISTINCT ON (symbol) symbol, name, name_en FROM instrument"
    " WHERE symbol = ANY ($1::text[]) ORDER BY symbol, last_seen_at DESC"
)
MAX_NAMES = 200
_SYMBOLS = (
    "SELECT symbol FROM order_intent WHERE created_at > now() - interval '7 days'"
    " AND broker = $1 AND account = $2"
    " GROUP BY symbol ORDER BY max(created_at) DESC LIMIT 200"
)
_EVENT = (
    "SELECT event_id, stream, event_type, aggregate_type, aggregate_id, status, attempt_count,"
    " max_attempts, last_error_code, last_error_message, created_at, updated_at"
)
_DEAD = (
    f"{_EVENT} FROM outbox_event WHERE processed_at IS NOT NULL AND status = 'DEAD'"
    " ORDER BY processed_at DESC LIMIT 100"
)
# By id, which grows with time: handled events have no other index.
_LATEST = f"{_EVENT} FROM outbox_event_all WHERE event_id >= $1 ORDER BY created_at DESC LIMIT 30"
_LATEST_S = 600
_SUSPENDED = (
    "SELECT broker, account, symbol, reason_code, detail, suspended_at FROM market_state"
    " WHERE broker = $1 AND account = $2 AND trade_status = 'SUSPENDED' ORDER BY symbol"
)
_RECONCILED = "SELECT reconciled_at FROM reconcile_mark WHERE broker = $1 AND account = $2"
_BACKTESTS = (
    "SELECT job_id, request -> 'arguments' AS arguments, status, error, created_at, finished_at,"
    " result -> 'performance' AS performance FROM backtest_job ORDER BY created_at DESC LIMIT 100"
)
_BROWSERS = (
    "SELECT endpoint_hash, created_at, disabled_at FROM push_subscription"
    " ORDER BY created_at DESC LIMIT 50"
)


class DashboardQueries:
    """Data of the accounts of a run, for the pages and for programs."""

    def __init__(self, sources: DashboardSources, hub: Hub, clock: Clock) -> None:
        self._sources = sources
        self._database = sources.database
        self._accounts = sources.accounts
        self._hub = hub
        self._candles = Candles(sources.record)
        self._clock = clock
        self._candles_lock = asyncio.Lock()

    async def status(self, _params: pages.AccountParams) -> pages.StatusPage:
        """Return whether QTS trades and why, and the live status of the run."""
        return self._hub.state()

    async def overview(self, params: pages.AccountParams) -> dict[str, Any]:
        """Return what the first page shows beside the status."""
        fills, alerts = pages.FillsParams(limit=10), pages.AlertsParams()
        return {
            "open_orders": await self._orders(20, only_open=True),
            "fills": (await self._fills(fills, since_s=_WEEK_S)).fills,
            "safety_log": await self._safety_log(),
            "positions": (await self.positions(params)).positions,
            "suspended": await self._suspended(),
            "unknown": await self._orders(20, state="UNKNOWN"),
            "reconciled_at": await self._reconciled_at(),
            "actions": (await self.actions(pages.ListParams(limit=20))).actions,
            "alerts": (await self.alerts(alerts)).alerts,
        }

    async def runs(self, _params: pages.Params) -> RunsPage:
        """Return all runs on this database, and sums of what is known now."""
        return await load_runs(self._database, self._sources.accounts)

    async def positions(self, _params: pages.AccountParams) -> pages.PositionsPage:
        """Return the positions of the ledger, and as the run sees them with prices and stops."""
        rows = [row for key in self._accounts for row in await list_positions(self._database, key)]
        live = await self._hub.live()
        return pages.PositionsPage(
            positions=[row for row in rows if row.quantity],
            live=live.positions if live else None,
        )

    async def orders(self, params: pages.OrdersParams) -> pages.OrdersPage:
        """Return orders with their latest attempt, newest first."""
        found = await self._orders(
            params.limit + 1,
            before=decode_cursor(params.cursor, OrderPosition),
            state=params.state,
            symbol=params.symbol or None,
            only_open=params.open,
        )
        page, cursor = cut_page(found, params.limit, lambda row: (row.created_at, row.intent_id))
        return pages.OrdersPage(
            orders=page, reconciled_at=await self._reconciled_at(), next_cursor=cursor
        )

    async def _orders(self, limit: int, **wanted: Any) -> list[OrderRow]:
        """Return the newest orders of all accounts."""
        found = [
            row
            for key in self._accounts
            for row in await list_orders(self._database, key, limit=limit, **wanted)
        ]
        found.sort(key=lambda row: (row.created_at, row.intent_id), reverse=True)
        return found[:limit]

    async def _reconciled_at(self) -> datetime | None:
        """Return when the account that was reconciled longest ago was; None: one never was."""
        found = [await self._database.fetchval(_RECONCILED, *key) for key in self._accounts]
        return None if None in found else min(found)

    async def order(self, params: pages.IdParams) -> pages.OrderPage:
        """Return one order from its signal to its last fill."""
        history = await order_history(self._database, params.id)
        signal = await self._database.fetchrow(_SIGNAL, params.id)
        return pages.OrderPage(
            order=history.order,
            attempts=history.attempts,
            fills=history.fills,
            signal=dict(signal.items()) if signal is not None else None,
        )

    async def fills(self, params: pages.FillsParams) -> pages.FillsPage:
        """Return fills, newest first."""
        return await self._fills(params)

    async def _fills(
        self, params: pages.FillsParams, since_s: float | None = None
    ) -> pages.FillsPage:
        since = _EVER
        if since_s is not None:
            since = datetime.fromtimestamp(self._clock.now().timestamp() - since_s, UTC)
        before = decode_cursor(params.cursor, FillPosition) or (None, None, None, None)
        wanted = (params.symbol or None, since, params.limit + 1, *before)
        rows = [
            pages.FillRow(**dict(row.items()))
            for key in self._accounts
            for row in await self._database.fetch(_FILLS, *key, *wanted)
        ]
        rows.sort(key=_fill_position, reverse=True)
        page, cursor = cut_page(rows, params.limit, _fill_position)
        return pages.FillsPage(fills=page, next_cursor=cursor)

    async def strategies(self, _params: pages.AccountParams) -> pages.StrategiesPage:
        """Return the strategies of the run with their parameters and the profit of the day."""
        live = await self._hub.live()
        return pages.StrategiesPage(
            run=self._hub.run_state,
            strategies=[
                pages.StrategyRow(status=each, profit=live.profits.get(each.key))
                for each in live.strategies
            ]
            if live
            else [],
        )

    async def equity(self, params: pages.EquityParams) -> pages.EquityPage:
        """Return the curve of a span and the profit of the day, of all accounts together."""
        now = self._clock.now()
        return pages.EquityPage(
            curve=await load_curve(self._database, self._accounts, params.span, now),
            today=await load_day_profit(self._database, self._accounts, now),
        )

    async def alerts(self, params: pages.AlertsParams) -> pages.AlertsPage:
        """Return open alerts, newest first, then acknowledged ones."""
        store = AlertStore(self._database, self._accounts)
        return pages.AlertsPage(
            alerts=await store.rows(params.limit, acknowledged=params.acknowledged)
        )

    async def risk(self, _params: pages.AccountParams) -> pages.RiskPage:
        """Return the fail-safe and its log, the kill switches, limits and refusals."""
        state, live = self._hub.state(), await self._hub.live()
        return pages.RiskPage(
            safety=state.safety,
            switches=state.switches,
            safety_log=await self._safety_log(),
            suspended=await self._suspended(),
            limits=live.limits if live else None,
            refusals=live.refusals if live else None,
        )

    async def _safety_log(self) -> list[SafetyLogEntry]:
        logs = [
            line for key in self._accounts for line in await FailSafe(self._database, key).log(20)
        ]
        return sorted(logs, key=lambda each: each.at, reverse=True)[:20]

    async def _suspended(self) -> list[pages.SuspendedSymbol]:
        return [
            pages.SuspendedSymbol(**dict(row.items()))
            for key in self._accounts
            for row in await self._database.fetch(_SUSPENDED, *key)
        ]

    async def outbox(self, _params: pages.Params) -> pages.OutboxPage:
        """Return the backlog of each stream, dead events and the latest ones."""
        database = self._database
        since = UUID(int=(int(self._clock.now().timestamp() - _LATEST_S) * 1000) << 80)
        return pages.OutboxPage(
            depths=await stream_depths(database, OutboxConfig().streams),
            paused=sorted(await paused_streams(database)),
            dead=_outbox_rows(await database.fetch(_DEAD)),
            latest=_outbox_rows(await database.fetch(_LATEST, since)),
        )

    async def dead_letters(self, params: pages.ListParams) -> pages.DeadLettersPage:
        """Return events that used up their retries in a lane, newest first."""
        before = decode_cursor(params.cursor, RowPosition)
        letters = await DeadLetterAdmin(self._database).find(
            params.limit + 1, None, True, before[0] if before else None
        )
        page, cursor = cut_page(letters, params.limit, lambda letter: (letter.number,))
        rows = [
            pages.DeadLetterRow(state=letter.state, **msgspec.structs.asdict(letter))
            for letter in page
        ]
        return pages.DeadLettersPage(dead_letters=rows, next_cursor=cursor)

    async def actions(self, params: pages.ListParams) -> pages.ActionsPage:
        """Return what operators did, newest first."""
        before = decode_cursor(params.cursor, RowPosition)
        rows = await ActionLog(self._database).rows(params.limit + 1, before[0] if before else None)
        page, cursor = cut_page(rows, params.limit, lambda row: (row.id,))
        return pages.ActionsPage(actions=page, next_cursor=cursor)

    async def names(self, params: pages.NamesParams) -> pages.NamesPage:
        """Return the Korean and the English name of each known symbol."""
        symbols = params.symbols.split(",")[:MAX_NAMES]
        rows = await self._database.fetch(_NAMES, symbols)
        return pages.NamesPage(names={row["symbol"]: [row["name"], row["name_en"]] for row in rows})

    async def market(self, params: pages.MarketParams) -> pages.MarketPage:
        """Return candles, fills, orders and the quote of a symbol; without one, the symbols."""
        symbol = params.symbol
        symbols = [
            row[0] for key in self._accounts for row in await self._database.fetch(_SYMBOLS, *key)
        ]
        if not symbol:
            return pages.MarketPage(symbols=symbols)
        async with self._candles_lock:
            candles = await asyncio.to_thread(self._candles.of, symbol, params.bar)
        wanted = pages.FillsParams(limit=500, symbol=symbol)
        return pages.MarketPage(
            symbols=symbols,
            candles=candles,
            fills=(await self._fills(wanted, since_s=_WEEK_S)).fills,
            orders=await self._orders(50, symbol=symbol),
            price=await self._read_cached("price", symbol),
        )

    async def logs(self, params: pages.LogsParams) -> LogsPage:
        """Return the newest lines of a log of this home."""
        return await LogFiles(self._sources.home, self._sources.run_log).logs(
            params.file, params.level, params.find
        )

    async def trades(self, params: pages.TradesParams) -> TradesView:
        """Return the round trips of the last days, by day, strategy, symbol and exit reason."""
        return group_trades(await self._trades(params))

    async def trades_csv(self, params: pages.TradesParams) -> str:
        return to_csv(await self._trades(params))

    async def _trades(self, params: pages.TradesParams) -> list[Trade]:
        now = self._clock.now()
        return await load_trades(self._database, self._accounts, TRADE_SPANS[params.span], now)

    async def backtests(self, _params: pages.Params) -> pages.BacktestsPage:
        """Return the latest backtest jobs of this database."""
        rows = await self._database.fetch(_BACKTESTS)
        return pages.BacktestsPage(jobs=[pages.JobSummary(**dict(row.items())) for row in rows])

    async def backtest(self, params: pages.IdParams) -> pages.BacktestPage:
        """Return one backtest job with its equity curve and without its trades."""
        job = await show_job(self._database, params.id)
        hidden = ("trades", "still_open")
        result = {k: v for k, v in job.result.items() if k not in hidden} if job.result else None
        return pages.BacktestPage(job=msgspec.structs.replace(job, result=result))

    async def browsers(self, _params: pages.Params) -> dict[str, Any]:
        """Return the browsers with web push, without their addresses."""
        rows = await self._database.fetch(_BROWSERS)
        return {"browsers": [dict(row.items()) for row in rows]}

    async def router(self, _params: pages.Params) -> pages.RouterPage:
        """Return the last run of the router on this home."""
        return pages.RouterPage(route=await asyncio.to_thread(load_last_report, self._sources.home))

    async def settings(self, _params: pages.Params) -> pages.SettingsPage:
        """Return the effective settings, secrets as three stars."""
        return pages.SettingsPage(settings=self._sources.settings)

    async def _read_cached(self, kind: str, symbol: str) -> Any:
        try:
            return await read_raw(self._sources.store, self._sources.cache, kind, symbol)
        except OperationError:
            return None


def _fill_position(fill: pages.FillRow) -> tuple[datetime, str, str, str]:
    return fill.traded_at, fill.broker, fill.account, fill.trade_id


def _outbox_rows(rows: list[Row]) -> list[pages.OutboxRow]:
    return [pages.OutboxRow(**dict(row.items())) for row in rows]
