"""Read-only queries of the pages, and a short-lived cache that open pages share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from qts.backtest import show_job
from qts.cache import CacheConfig, CacheStore, read_raw
from qts.dashboard.action_log import ActionLog
from qts.dashboard.candles import Candles
from qts.database import Database, Row
from qts.domain import AccountKey, Clock, OperationError, RefusedError
from qts.events import DeadLetterAdmin
from qts.orders import list_orders, list_positions, order_history
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
    "SELECT broker, symbol, reason_code, detail, suspended_at FROM market_state"
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
    """Data of the pages of one account; the name of a public method is its route.

    `folders` are the home and the folder of the records.
    """

    def __init__(
        self,
        database: Database,
        account: AccountKey,
        store: CacheStore,
        cache: CacheConfig,
        folders: tuple[Path, Path],
        clock: Clock,
    ) -> None:
        home, record = folders
        self._database = database
        self._account = account
        self._store = store
        self._cache = cache
        self._home = home
        self._candles = Candles(record)
        self._clock = clock
        self._candles_lock = asyncio.Lock()

    async def overview(self, _params: Mapping[str, str]) -> Any:
        database, key = self._database, self._account
        return {
            "safety_log": await FailSafe(database, key).log(20),
            "positions": [row for row in await list_positions(database, key) if row.quantity],
            "suspended": _to_dicts(await database.fetch(_SUSPENDED, *key)),
            "unknown": await list_orders(database, key, state="UNKNOWN", limit=20),
            "reconciled_at": await database.fetchval(_RECONCILED, *key),
            "actions": await ActionLog(database).rows(20),
        }

    async def events(self, _params: Mapping[str, str]) -> Any:
        letters = await DeadLetterAdmin(self._database).find(100, None, True)
        return {
            "dead_letters": [
                {"state": letter.state, **msgspec.structs.asdict(letter)} for letter in letters
            ]
        }

    async def orders(self, params: Mapping[str, str]) -> Any:
        return {
            "orders": await list_orders(
                self._database,
                self._account,
                state=params.get("state") or None,
                symbol=params.get("symbol") or None,
                only_open=params.get("open") == "1",
                limit=100,
            ),
            "reconciled_at": await self._database.fetchval(_RECONCILED, *self._account),
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
        symbols = [row[0] for row in await self._database.fetch(_SYMBOLS, *self._account)]
        if not symbol:
            return {"symbols": symbols, "candles": [], "fills": [], "orders": [], "book": None}
        async with self._candles_lock:
            candles = await asyncio.to_thread(self._candles.of, symbol, bar_s)
        fills = await self._database.fetch(_FILLS, *self._account, symbol)
        return {
            "symbols": symbols,
            "candles": candles,
            "fills": _to_dicts(fills),
            "orders": await list_orders(self._database, self._account, symbol=symbol, limit=50),
            "price": await self._read_cached("price", symbol),
            "book": await self._read_cached("book", symbol),
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
