"""Answers kept for a moment: ten open pages ask the database once.

What the pages ask of the database, the cache and the record: they look, and change nothing.
"""

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
from qts.domain import Clock, OperationError, RefusedError
from qts.events import DeadLetterAdmin
from qts.orders import list_orders, list_positions, order_history
from qts.outbox import OutboxConfig, paused_streams, stream_depths
from qts.risk import FailSafe
from qts.router import load_last_report

KEPT_S = 0.5
KEPT = 64


class QueryCache:
    """By question; an answer that is being made is waited for by all who ask."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._made: dict[str, tuple[int, asyncio.Task[bytes]]] = {}

    async def get(self, question: str, make: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
        now = self._clock.monotonic_ns()
        kept = self._made.get(question)
        if kept is None or now - kept[0] > KEPT_S * 1e9:
            self._made.pop(question, None)  # so that the oldest stands first
            while len(self._made) >= KEPT:
                del self._made[next(iter(self._made))]
            kept = (now, asyncio.create_task(make()))
            self._made[question] = kept
        try:
            return await asyncio.shield(kept[1])
        except Exception:
            self._made.pop(question, None)  # the next one asks anew
            raise

    def forget(self) -> None:
        """Somebody changed something."""
        self._made.clear()


_SIGNAL = (
    "SELECT s.id, s.strategy_key, s.symbol, s.side, s.reason, s.decided_at, s.created_at,"
    " i.approved_at, i.expires_at, i.updated_at AS intent_updated_at"
    " FROM signal s JOIN order_intent i ON i.signal_id = s.id WHERE i.id = $1"
)
_FILLS = (
    "SELECT side, quantity, price, fee, traded_at, broker_order_id FROM fill"
    " WHERE traded_at > now() - interval '7 days' AND symbol = $1"
    " ORDER BY traded_at DESC LIMIT 500"
)
_SYMBOLS = (
    "SELECT symbol FROM order_intent WHERE created_at > now() - interval '7 days'"
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
    " WHERE trade_status = 'SUSPENDED' ORDER BY symbol"
)
_RECONCILED = "SELECT reconciled_at FROM reconcile_mark ORDER BY reconciled_at DESC LIMIT 1"
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
    def __init__(
        self,
        database: Database,
        store: CacheStore,
        cache: CacheConfig,
        home: Path,
        record: Path,
        clock: Clock,
    ) -> None:
        self._database = database
        self._store = store
        self._cache = cache
        self._home = home
        self._candles = Candles(record)
        self._clock = clock
        self._reading = asyncio.Lock()

    async def overview(self, _asked: Mapping[str, str]) -> Any:
        database = self._database
        return {
            "safety_log": await FailSafe(database).log(20),
            "positions": [row for row in await list_positions(database) if row.quantity],
            "suspended": _plain(await database.fetch(_SUSPENDED)),
            "unknown": await list_orders(database, state="UNKNOWN", limit=20),
            "reconciled_at": await database.fetchval(_RECONCILED),
            "actions": await ActionLog(database).rows(20),
        }

    async def events(self, _asked: Mapping[str, str]) -> Any:
        letters = await DeadLetterAdmin(self._database).find(100, None, True)
        return {
            "dead_letters": [
                {"state": letter.state, **msgspec.structs.asdict(letter)} for letter in letters
            ]
        }

    async def orders(self, asked: Mapping[str, str]) -> Any:
        return {
            "orders": await list_orders(
                self._database,
                state=asked.get("state") or None,
                symbol=asked.get("symbol") or None,
                only_open=asked.get("open") == "1",
                limit=100,
            ),
            "reconciled_at": await self._database.fetchval(_RECONCILED),
        }

    async def order(self, asked: Mapping[str, str]) -> Any:
        """One order from the signal to the last fill."""
        intent = _uuid(asked.get("id", ""))
        life = await order_history(self._database, intent)
        signal = await self._database.fetchrow(_SIGNAL, intent)
        return {
            **msgspec.structs.asdict(life),
            "signal": dict(signal.items()) if signal is not None else None,
        }

    async def outbox(self, _asked: Mapping[str, str]) -> Any:
        database = self._database
        since = UUID(int=(int(self._clock.now().timestamp() - _LATEST_S) * 1000) << 80)
        return {
            "depths": await stream_depths(database, OutboxConfig().streams),
            "paused": sorted(await paused_streams(database)),
            "dead": _plain(await database.fetch(_DEAD)),
            "latest": _plain(await database.fetch(_LATEST, since)),
        }

    async def market(self, asked: Mapping[str, str]) -> Any:
        symbol, bar_s = asked.get("symbol", ""), _bar(asked.get("bar", "60"))
        symbols = [row[0] for row in await self._database.fetch(_SYMBOLS)]
        if not symbol:
            return {"symbols": symbols, "candles": [], "fills": [], "orders": [], "book": None}
        async with self._reading:
            candles = await asyncio.to_thread(self._candles.of, symbol, bar_s)
        fills = await self._database.fetch(_FILLS, symbol)
        return {
            "symbols": symbols,
            "candles": candles,
            "fills": _plain(fills),
            "orders": await list_orders(self._database, symbol=symbol, limit=50),
            "price": await self._known("price", symbol),
            "book": await self._known("book", symbol),
        }

    async def backtests(self, _asked: Mapping[str, str]) -> Any:
        return {"jobs": _plain(await self._database.fetch(_BACKTESTS))}

    async def backtest(self, asked: Mapping[str, str]) -> Any:
        """One, with its equity and without its trades."""
        job = await show_job(self._database, _uuid(asked.get("id", "")))
        result = {**job.result} if job.result else None
        for name in ("trades", "still_open"):
            if result:
                result.pop(name, None)
        return {"job": {**msgspec.structs.asdict(job), "result": result}}

    async def browsers(self, _asked: Mapping[str, str]) -> Any:
        """Those that have web push; their addresses are not told."""
        return {"browsers": _plain(await self._database.fetch(_BROWSERS))}

    async def router(self, _asked: Mapping[str, str]) -> Any:
        return {"route": await asyncio.to_thread(load_last_report, self._home)}

    async def _known(self, kind: str, symbol: str) -> Any:
        try:
            return await read_raw(self._store, self._cache, kind, symbol)
        except OperationError:
            return None


def _plain(rows: list[Row]) -> list[dict[str, Any]]:
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
