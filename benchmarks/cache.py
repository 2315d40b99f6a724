"""Cache: a PreCheck on each level, and ticks into Redis, beside peers on the same server."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import uvloop

from benchmarks import machine
from benchmarks.cache_peers import TTL_MS, Library, RedisPy, libraries, redis_py
from benchmarks.plot import bars
from benchmarks.report import Goal, Picture, Result, Row
from qts.cache import (
    Cache,
    CacheConfig,
    CachedOrder,
    CachedPosition,
    CachedPrice,
    CachedRisk,
    CacheEntry,
    Ttls,
)
from qts.cache.call_policy import store_write
from qts.cache.connection import RedisConnection
from qts.cache.redis import RedisStore
from qts.cache.region import CacheRegion, NearCacheSlot
from qts.domain import Secret
from qts.embedded import EmbeddedConfig, EmbeddedServers, Home

_BATCH = 50
_IN_TURN = 10  # calls of one case before the next case
_ROUNDS, _QUICK_ROUNDS = 300, 10
_LONG = Ttls(price_ms=60_000, position_ms=60_000, risk_ms=60_000)
_CONFIG = CacheConfig(
    prefix="bench:", ttl=_LONG, socket_timeout_ms=5000, precheck_ms=1000, venue_age_ms=600_000
)

Case = Callable[[], Awaitable[int]]


class Bench(NamedTuple):
    """Clients and values that the cases share; all clients use the same server over TCP."""

    cache: Cache
    store: RedisStore
    connection: RedisConnection
    peer: RedisPy
    libraries: dict[str, Library]
    keys: list[str]
    slots: dict[str, NearCacheSlot]  # near-cache slots of all keys

    async def renew(self) -> None:
        """Write every value again: a run may take longer than the longest TTL."""
        cache = self.cache
        regions: list[CacheRegion[Any]] = [cache.prices, cache.positions, cache.risks, cache.orders]
        for region, value in zip(regions, _values(), strict=True):
            await region.put(value)
        for name, library in self.libraries.items():
            await library.write(_four(name))
        self.slots.update((key, slot) for key in self.keys if (slot := cache._tiers.near.find(key)))


class NoLoader:
    """Loader that must not be used: every value is in the cache."""

    async def load(self, kind: str, name: str) -> CacheEntry | None:
        raise AssertionError(f"cache miss: {kind} of {name}")


def run(quick: bool, progress: Callable[[str], None]) -> Result:
    progress("describing the machine")
    described = machine.describe(quick)
    with tempfile.TemporaryDirectory() as place:
        home = Home.at(Path(place) / "home")
        with EmbeddedServers(home, EmbeddedConfig(tcp=True), postgres=False) as servers:
            valkey = servers.valkey
            url = valkey.tcp_url if valkey else None
            if valkey is None or url is None:
                raise AssertionError("Valkey did not start with TCP")
            progress("PreChecks and ticks, every case in turn")
            found = uvloop.run(_measure(url, quick))
            described["server"] = f"Valkey {valkey.binary.version}, loopback TCP"
    checks, ticks = _precheck_rows(found), _tick_rows(found)
    notes = [
        "ours returns checked, typed values; the peers' figures end with a dict of text",
        "ours writes a tick only if it is newer: by script at first, then in transactions that the"
        " server refuses after another write; no peer compares versions",
    ]
    if "cashews ticks" not in found:
        notes.append(
            "cashews and aiocache are not installed here; `make bench PACKAGE=cache` has them"
        )
    if described["noisy"]:
        notes.append(f"noisy: others used {described['foreign_cpus']:g} CPUs before the start")
    return Result(
        machine=described,
        rows=(*checks, *ticks),
        notes=tuple(notes),
        pictures=(
            Picture("cache-precheck", bars("PreCheck: four values at once", checks)),
            Picture("cache-ticks", bars("Ticks into Redis, with their TTL", ticks)),
        ),
    )


async def _measure(url: Secret, quick: bool) -> dict[str, np.ndarray[Any, Any]]:
    async with _bench(url) as bench:
        cases = _cases(bench)
        times: dict[str, list[int]] = {name: [] for name in cases}
        gc.collect()
        gc.disable()
        try:
            for turn in range(-1, _QUICK_ROUNDS if quick else _ROUNDS):
                await bench.renew()
                for name, case in cases.items():
                    taken = [await case() for _ in range(_IN_TURN)]
                    if turn >= 0:  # the first turn warms up
                        times[name] += taken
        finally:
            gc.enable()
    return {name: np.array(taken) / 1000 for name, taken in times.items()}


@asynccontextmanager
async def _bench(url: Secret) -> AsyncIterator[Bench]:
    connection = RedisConnection(url, _CONFIG)
    async with (
        redis_py(url) as peer,
        libraries(url) as others,
        RedisStore.open(url, _CONFIG) as store,
        Cache.open(store, NoLoader(), _CONFIG) as cache,
    ):
        keys = [_CONFIG.prefix + value.key(value.name) for value in _values()]
        try:
            yield Bench(cache, store, connection, peer, others, keys, {})
        finally:
            await connection.close()


def _cases(bench: Bench) -> Mapping[str, Case]:
    return {**_precheck_cases(bench), **_tick_cases(bench), **_library_cases(bench)}


def _precheck_cases(bench: Bench) -> Mapping[str, Case]:
    cache, _, connection, peer, _, keys, all_slots = bench
    slots = cache._tiers.near._slots
    commands = [("HGETALL", key) for key in keys]

    async def near() -> int:
        slots.update(all_slots)
        began = time.perf_counter_ns()
        found = cache.try_precheck("005930", order_id="ORD1")
        taken = time.perf_counter_ns() - began
        if found is None:
            raise AssertionError("near-cache miss")
        return taken

    return {
        "near": near,
        "redis": _timed(lambda: cache.precheck("005930", order_id="ORD1"), slots.clear),
        "sequential": _timed(lambda: peer.one_by_one(keys)),
        "pipeline": _timed(lambda: peer.read(keys)),
        "bare": _timed(lambda: connection.call(commands)),
    }


def _tick_cases(bench: Bench) -> Mapping[str, Case]:
    store, peer = bench.store, bench.peer
    ticks: dict[str, CacheEntry] = _ticks()
    one: dict[str, CacheEntry] = dict([next(iter(ticks.items()))])

    def write(values: dict[str, CacheEntry]) -> Awaitable[Any]:
        return store.write(store_write(key, tick, TTL_MS) for key, tick in values.items())

    return {
        "tick": _timed(lambda: write(one)),
        "peer tick": _timed(lambda: peer.write(one)),
        "ticks": _timed(lambda: write(ticks)),
        "peer ticks": _timed(lambda: peer.write(ticks)),
        "atomic ticks": _timed(lambda: peer.write(ticks, atomic=True)),
    }


def _library_cases(bench: Bench) -> Mapping[str, Case]:
    cases: dict[str, Case] = {}
    for name, library in bench.libraries.items():
        cases |= _of_library(name, library)
    return cases


def _of_library(name: str, library: Library) -> Mapping[str, Case]:
    """Return the cases of a library; it has separate keys, as its values are not hashes."""
    ticks = {f"{name}:{key}": tick for key, tick in _ticks().items()}
    four = list(_four(name))

    async def read() -> Any:
        found = await library.read(four)
        if None in found:
            raise AssertionError(f"{name} lost a value")

    async def write() -> Any:
        await library.write({key: tick.fields() for key, tick in ticks.items()})

    return {f"{name} read": _timed(read), f"{name} ticks": _timed(write)}


def _timed(call: Callable[[], Awaitable[Any]], prepare: Callable[[], Any] | None = None) -> Case:
    async def case() -> int:
        if prepare:
            prepare()
        began = time.perf_counter_ns()
        await call()
        return time.perf_counter_ns() - began

    return case


def _precheck_rows(found: dict[str, np.ndarray[Any, Any]]) -> list[Row]:
    near, redis = found["near"], found["redis"]
    pipe, calls, bare = found["pipeline"], found["sequential"], found["bare"]
    half = (Goal("ratio", "<=", 0.5),)
    return [
        _row("PreCheck in this process", 99, near, pipe, "redis-py pipeline", _below(20)),
        _row("PreCheck through Redis", 50, redis, pipe, "redis-py pipeline", half),
        _row("PreCheck through Redis", 99, redis, pipe, "redis-py pipeline", _below(1000)),
        _row("PreCheck through Redis", 50, redis, calls, "redis-py, 4 calls"),
        _row("PreCheck through Redis", 50, redis, bare, "bare protocol"),
        *(
            _row("PreCheck through Redis", 50, redis, found[f"{name} read"], name)
            for name in ("cashews", "aiocache")
            if f"{name} read" in found
        ),
    ]


def _tick_rows(found: dict[str, np.ndarray[Any, Any]]) -> list[Row]:
    at_least = (Goal("ratio", ">=", 5),)
    many, ours = f"ticks, {_BATCH} at once", found["ticks"]
    return [
        _rate("ticks, one at a time", 1, found["tick"], found["peer tick"], "redis-py pipeline"),
        _rate(many, _BATCH, ours, found["peer ticks"], "redis-py pipeline", at_least),
        _rate(many, _BATCH, ours, found["atomic ticks"], "redis-py, MULTI"),
        *(
            _rate(many, _BATCH, ours, found[f"{name} ticks"], name)
            for name in ("cashews", "aiocache")
            if f"{name} ticks" in found
        ),
    ]


def _row(name: str, percent: int, ours: Any, peer: Any, against: str, goals: Any = ()) -> Row:
    return Row(
        name=name,
        metric=f"p{percent}",
        unit="us",
        better="lower",
        ours=float(np.percentile(ours, percent)),
        peer=float(np.percentile(peer, percent)),
        peer_name=against,
        goals=goals,
        note=f"{len(ours)} calls each",
    )


def _rate(name: str, size: int, ours: Any, peer: Any, against: str, goals: Any = ()) -> Row:
    return Row(
        name=name,
        metric="from the median",
        unit="ticks/s",
        better="higher",
        ours=size * 1e6 / float(np.median(ours)),
        peer=size * 1e6 / float(np.median(peer)),
        peer_name=against,
        goals=goals,
        note=f"{len(ours)} batches each",
    )


def _below(bound: float) -> tuple[Goal, ...]:
    return (Goal("ours", "<", bound),)


def _values() -> tuple[CachedPrice, CachedPosition, CachedRisk, CachedOrder]:
    now_ms = int(time.time() * 1000)
    half = Decimal("0.5")
    return (
        _price("005930"),
        CachedPosition(
            symbol="005930",
            qty=Decimal(100),
            avg_price=Decimal(74500),
            unrealized_pnl=Decimal(55000),
            exposure_pct=half,
            updated_at=now_ms,
        ),
        CachedRisk(
            exposure_used=half,
            daily_pnl=Decimal(125000),
            trade_count=15,
            remaining_limit=half,
            max_exposure_pct=half,
            daily_loss_limit=Decimal(-500000),
            updated_at=now_ms,
        ),
        CachedOrder(
            order_id="ORD1",
            status="PARTIALLY_FILLED",
            filled_qty=Decimal(50),
            pending_qty=Decimal(50),
            avg_fill_price=Decimal(75050),
            last_update=now_ms,
        ),
    )


def _price(symbol: str) -> CachedPrice:
    return CachedPrice(
        symbol=symbol,
        bid=Decimal(75000),
        ask=Decimal(75100),
        last=Decimal(75050),
        volume=Decimal(1234567),
        timestamp=int(time.time() * 1000),
        ver=1,
    )


def _four(library: str) -> dict[str, dict[str, str]]:
    return {f"{library}:{value.kind}": value.fields() for value in _values()}


def _ticks() -> dict[str, CacheEntry]:
    return {f"{_CONFIG.prefix}price:S{n:03}": _price(f"S{n:03}") for n in range(_BATCH)}
