"""Inspection of a cache server from outside the running processes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from qts.cache.config import CacheConfig
from qts.cache.entries import (
    CachedOrder,
    CachedOrderBook,
    CachedPosition,
    CachedPrice,
    CachedRisk,
    CachedStrategyParams,
)
from qts.cache.entry import CacheEntry
from qts.cache.monitor import STATUS
from qts.cache.status import CacheStatus
from qts.cache.store import CacheStore, Health
from qts.cache.trade_counter import TradeIds
from qts.domain import RefusedError

_KINDS: dict[str, type[CacheEntry]] = {
    each.kind: each
    for each in (
        CachedPrice,
        CachedPosition,
        CachedOrderBook,
        CachedRisk,
        CachedOrder,
        CachedStrategyParams,
    )
}
_PREFIXES = {each.prefix: each.kind for each in _KINDS.values()} | {TradeIds.prefix: TradeIds.kind}
_DEPTH = 50


class ServerStatus(msgspec.Struct, frozen=True):
    """Health of the server, number of values of each kind, and published statuses."""

    server: Health
    keys: dict[str, int]
    processes: dict[str, CacheStatus]  # by process id


async def inspect_server(store: CacheStore, config: CacheConfig) -> ServerStatus:
    health = await store.health()
    keys = [key.removeprefix(config.prefix) for key in await store.keys(config.prefix)]
    status_keys = [key for key in keys if key.startswith(STATUS)]
    processes: dict[str, CacheStatus] = {}
    for key, fields in zip(
        status_keys, await store.read([config.prefix + key for key in status_keys]), strict=True
    ):
        if fields is not None:
            status = msgspec.json.decode(fields["json"], type=CacheStatus)
            processes[key.removeprefix(STATUS)] = status
    return ServerStatus(health, _count(keys), processes)


async def read_raw(
    store: CacheStore, config: CacheConfig, kind: str, name: str
) -> dict[str, Any] | None:
    """Return the stored fields; of a book also the levels, best first, prices in units."""
    if kind not in _KINDS:
        raise RefusedError(f"{kind!r} is not a kind of value; allowed are {', '.join(_KINDS)}")
    key = config.prefix + _KINDS[kind].key(name)
    if kind != CachedOrderBook.kind:
        (fields,) = await store.read([key])
        return dict(fields) if fields is not None else None
    found = await store.read_book(key, _DEPTH)
    if found is None:
        return None
    return {**found[0], "bids": list(found[1].bids), "asks": list(found[1].asks)}


def _count(keys: list[str]) -> dict[str, int]:
    """Count values, not keys: a book is one value in three keys."""
    kinds = (
        _PREFIXES.get(key.split(":")[0] + ":")
        for key in keys
        if not (key.startswith(CachedOrderBook.prefix) and key.endswith((":bid", ":ask")))
    )
    return dict(Counter(kind for kind in kinds if kind))
