"""Read-only queries of the pages, and a short-lived cache that open pages share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from qts.backtest import show_job
from qts.cache import CacheConfig, CacheStore, read_raw
from qts.dashboard.action_log import ActionLog
from qts.dashboard.candles import Candles
from qts.dashboard.equity import load_curve, load_day_profit
from qts.database import Database, Row
from qts.domain import AccountKey, Clock, OperationError, RefusedError
from qts.events import DeadLetterAdmin
from qts.notify import AlertStore
from qts.orders import OrderRow, list_orders, list_positions, order_history
from qts.outbox import OutboxConfig, paused_streams, stream_depths
from qts.risk import FailSafe
from qts.router import load_last_report

TTL_S = 0.5
MAX_ENTRIES = 64


class QueryCache:
    """Results by request; concurrent requests share one query in flight."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[str, tuple[int, asyncio.Task[bytes]]] = {}

    async def get(self, key: str, query: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
        now = self._clock.monotonic_ns()
        entry = self._entries.get(key)
        if entry is None or now - entry[0] > TTL_S * 1e9:
            self._entries.pop(key, None)  # so that the oldest is first
            while len(self._entries) >= MAX_ENTRIES:
                del self._entries[next(iter(self._entries))]
            entry = (now, asyncio.create_task(query()))
            self._entries[key] = entry
        try:
            return await asyncio.shield(entry[1])
        except Exception:
            self._entries.pop(key, None)  # the next request runs the query again
            raise

    def clear(self) -> None:
        """Drop all results, after an action changed something."""
        self._entries.clear()


_SIGNAL = (
    "SELECT s.id, s.strategy_key, s.symbol, s.side, s.reason, s.decided_at, s.created_at,"
    " i.approved_at, i.expires_at, i.updated_at AS intent_updated_at"
    " FROM signal s JOIN order_intent i ON i.signal_id = s.id WHERE i.id = $1"
)
_FILLS = (
    "SELECT side, quantity, price, fee, traded_at, broker_order_id FROM fill"
    " WHERE traded_at > now() - interval '7 days' AND broker = $1 AND account = $2 AND symbol = $3"
    " ORDER BY traded_at DESC LIMIT 500"
)
_LATEST_FILLS = (
    "SELECT broker, account, symbol, side, quantity, price, fee, realised_pnl, traded_at FROM fill"
    " WHERE traded_at > now() - interval '7 days' AND broker = $1 AND account = $2"
    " ORDER BY traded_at DESC LIMIT 10"
)
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
_BARS = (1, 5, 15, 60, 300, 900, 3600)


class DashboardQueries:
    """Data of the pages of the accounts of a run; the name of a public method is its route.

    `folders` are the home and the folder of the records.
    """

    def __init__(
        self,
        database: Database,
        accounts: Sequence[AccountKey],
        store: CacheStore,
        cache: CacheConfig,
        folders: tuple[Path, Path],
        clock: Clock,
    ) -> None:
        home, record = folders
        self._database = database
        self._accounts = accounts
        self._store = store
        self._cache = cache
        self._home = home
        self._candles = Candles(record)
        self._clock = clock
        self._candles_lock = asyncio.Lock()

    async def overview(self, _params: Mapping[str, str]) -> Any:
        database = self._database
        logs = [line for key in self._accounts for line in await FailSafe(database, key).log(20)]
        rows = [row for key in self._accounts for row in await list_positions(database, key)]
        fills = [row for key in self._accounts for row in await database.fetch(_LATEST_FILLS, *key)]
        fills.sort(key=lambda row: row["traded_at"], reverse=True)
        suspended = [
            row for key in self._accounts for row in await database.fetch(_SUSPENDED, *key)
        ]
        return {
            "open_orders": await self._orders(20, only_open=True),
            "fills": _to_dicts(fills[:10]),
            "safety_log": sorted(logs, key=lambda each: each.at, reverse=True)[:20],
            "positions": [row for row in rows if row.quantity],
            "suspended": _to_dicts(suspended),
            "unknown": await self._orders(20, state="UNKNOWN"),
            "reconciled_at": await self._reconciled_at(),
            "actions": await ActionLog(database).rows(20),
            "alerts": await AlertStore(database, self._accounts).rows(100, acknowledged=True),
        }

    async def _orders(self, limit: int, **wanted: Any) -> list[OrderRow]:
        """Return the newest orders of all accounts."""
        found = [
            row
            for key in self._accounts
            for row in await list_orders(self._database, key, limit=limit, **wanted)
        ]
        return sorted(found, key=lambda row: row.created_at, reverse=True)[:limit]

    async def _reconciled_at(self) -> datetime | None:
        """Return when the account that was reconciled longest ago was; None: one never was."""
        found = [await self._database.fetchval(_RECONCILED, *key) for key in self._accounts]
        return None if None in found else min(found)

    async def equity(self, params: Mapping[str, str]) -> Any:
        """Return the curve of a span and the profit of the day, of all accounts together."""
        now, span = self._clock.now(), params.get("span", "1d")
        return {
            "curve": await load_curve(self._database, self._accounts, span, now),
            "today": await load_day_profit(self._database, self._accounts, now),
        }

    async def names(self, params: Mapping[str, str]) -> Any:
        """Return the Korean and the English name of each known symbol."""
        symbols = params.get("symbols", "").split(",")[:MAX_NAMES]
        rows = await self._database.fetch(_NAMES, symbols)
        return {"names": {row["symbol"]: [row["name"], row["name_en"]] for row in rows}}

    async def events(self, _params: Mapping[str, str]) -> Any:
        letters = await DeadLetterAdmin(self._database).find(100, None, True)
        return {
            "dead_letters": [
                {"state": letter.state, **msgspec.structs.asdict(letter)} for letter in letters
            ]
        }

    async def orders(self, params: Mapping[str, str]) -> Any:
        return {
            "orders": await self._orders(
                100,
                state=params.get("state") or None,
                symbol=params.get("symbol") or None,
                only_open=params.get("open") == "1",
            ),
            "reconciled_at": await self._reconciled_at(),
        }

    async def order(self, params: Mapping[str, str]) -> Any:
        """Return one order from its signal to its last fill."""
        intent = _uuid(params.get("id", ""))
        history = await order_history(self._database, intent)
        signal = await self._database.fetchrow(_SIGNAL, intent)
        return {
            **msgspec.structs.asdict(history),
            "signal": dict(signal.items()) if signal is not None else None,
        }

    async def outbox(self, _params: Mapping[str, str]) -> Any:
        database = self._database
        since = UUID(int=(int(self._clock.now().timestamp() - _LATEST_S) * 1000) << 80)
        return {
            "depths": await stream_depths(database, OutboxConfig().streams),
            "paused": sorted(await paused_streams(database)),
            "dead": _to_dicts(await database.fetch(_DEAD)),
            "latest": _to_dicts(await database.fetch(_LATEST, since)),
        }

    async def market(self, params: Mapping[str, str]) -> Any:
        symbol, bar_s = params.get("symbol", ""), _bar(params.get("bar", "60"))
        symbols = [
            row[0] for key in self._accounts for row in await self._database.fetch(_SYMBOLS, *key)
        ]
        if not symbol:
            return {"symbols": symbols, "candles": [], "fills": [], "orders": []}
        async with self._candles_lock:
            candles = await asyncio.to_thread(self._candles.of, symbol, bar_s)
        fills = [
            row
            for key in self._accounts
            for row in await self._database.fetch(_FILLS, *key, symbol)
        ]
        return {
            "symbols": symbols,
            "candles": candles,
            "fills": _to_dicts(fills),
            "orders": await self._orders(50, symbol=symbol),
            "price": await self._read_cached("price", symbol),
        }

    async def backtests(self, _params: Mapping[str, str]) -> Any:
        return {"jobs": _to_dicts(await self._database.fetch(_BACKTESTS))}

    async def backtest(self, params: Mapping[str, str]) -> Any:
        """Return one job with its equity curve and without its trades."""
        job = await show_job(self._database, _uuid(params.get("id", "")))
        result = {**job.result} if job.result else None
        for name in ("trades", "still_open"):
            if result:
                result.pop(name, None)
        return {"job": {**msgspec.structs.asdict(job), "result": result}}

    async def browsers(self, _params: Mapping[str, str]) -> Any:
        """Return the browsers with web push, without their addresses."""
        return {"browsers": _to_dicts(await self._database.fetch(_BROWSERS))}

    async def router(self, _params: Mapping[str, str]) -> Any:
        return {"route": await asyncio.to_thread(load_last_report, self._home)}

    async def _read_cached(self, kind: str, symbol: str) -> Any:
        try:
            return await read_raw(self._store, self._cache, kind, symbol)
        except OperationError:
            return None


def _to_dicts(rows: list[Row]) -> list[dict[str, Any]]:
    return [dict(row.items()) for row in rows]


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise RefusedError(f"{text[:50]!r} is not an id") from None


def _bar(text: str) -> int:
    if not text.isdigit() or int(text) not in _BARS:
        raise RefusedError(
            f"bar {text[:20]!r}: expected one of {', '.join(map(str, _BARS))} seconds"
        )
    return int(text)
