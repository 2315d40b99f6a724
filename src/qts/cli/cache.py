"""`qts ops cache`: inspect the cache and flush it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from qts.cli.console import ConfigOption, JsonOption, YesOption, print_json
from qts.cli.groups import command_group
from qts.domain import OperationError, RefusedError

if TYPE_CHECKING:
    from qts.cache import CacheConfig, CacheStatus, CacheStore, ServerStatus

T = TypeVar("T")

BATCH = 500

app = command_group("Cache: status, one value, flush.", "qts ops cache status")


@app.command()
def status(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the server, the number of keys by kind, and the figures of running processes.

    Example: qts ops cache status --json
    """
    from qts.cache import inspect_server

    found = _with_store(config, inspect_server)
    if as_json:
        print_json(found)
    else:
        typer.echo("\n".join(_lines(found)))


@app.command()
def get(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="price, position, book, risk, order, strategy.")
    ],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Symbol, account, order or strategy.")
    ],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one value as stored in Redis.

    Example: qts ops cache get price 005930
    """
    from qts.cache import read_raw

    found = _with_store(config, lambda store, settings: read_raw(store, settings, kind, name))
    if found is None:
        raise OperationError(f"the cache has no {kind} of {name}")
    if as_json:
        print_json(found)
    else:
        width = max(map(len, found))
        typer.echo("\n".join(f"{field:<{width}}  {value}" for field, value in found.items()))


@app.command()
def flush(config: ConfigOption = None, yes: YesOption = False) -> None:
    """Delete the keys of QTS, and no other, after a confirmation. The database is unchanged.

    Example: qts ops cache flush --yes
    """
    if not yes and not sys.stdin.isatty():
        raise RefusedError(
            "qts ops cache flush asks for confirmation; add --yes where there is no terminal"
        )

    async def confirm_and_delete(store: CacheStore, settings: CacheConfig) -> int:
        keys = await store.keys(settings.prefix)
        if not yes and not typer.confirm(
            f"Delete {len(keys)} keys that begin with {settings.prefix}?"
        ):
            raise typer.Abort
        return sum([await store.delete(keys[at : at + BATCH]) for at in range(0, len(keys), BATCH)])

    typer.echo(f"deleted {_with_store(config, confirm_and_delete)} keys")


def _with_store(config: Path | None, query: Callable[[CacheStore, CacheConfig], Awaitable[T]]) -> T:
    from qts.app import open_store
    from qts.config import load

    async def run() -> T:
        settings = load(config, os.environ)
        async with open_store(settings) as store:
            return await query(store, settings.cache)

    return asyncio.run(run())


def _lines(found: ServerStatus) -> list[str]:
    server = found.server
    used = f"{server.used_memory / 1e6:.1f} MB"
    if server.max_memory:
        used += f" of {server.max_memory / 1e6:.0f} MB"
    return [
        f"server   {server.version}, {used}, {server.clients} clients, "
        f"{server.evicted_keys} keys evicted",
        "keys     "
        + (", ".join(f"{kind} {count}" for kind, count in found.keys.items()) or "none"),
        *(line for pid, status in found.processes.items() for line in _process(pid, status)),
    ]


def _process(pid: str, status: CacheStatus) -> list[str]:
    lines = [
        f"process  {pid}: circuit {status.breaker}, opened {status.breaker_opened} times; "
        f"{status.queue.depth} writes pending; PreCheck p50 {status.precheck_p50_us:.0f} us, "
        f"p99 {status.precheck_p99_us:.0f} us"
    ]
    for kind, region in status.kinds.items():
        if region.hit_rate is not None:
            goal = f", goal {region.goal:.0%}" if region.goal else ""
            lines.append(f"  {kind:<9} hit rate {region.hit_rate:.1%} of {region.recent}{goal}")
    return lines + [
        f"  {each.severity.upper()}: {each.rule}: {each.text}" for each in status.alerts()
    ]
