"""`qts cache`: look into the cache, and empty it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from qts.cli.console import ConfigOption, JsonOption, print_json
from qts.domain import OperationError, RefusedError

if TYPE_CHECKING:
    from qts.cache import CacheConfig, CacheStatus, CacheStore
    from qts.cache import ServerStatus as Found

T = TypeVar("T")

BATCH = 500


app = typer.Typer(
    help="The cache: how it is, what it holds, and how to empty it.",
    epilog="Example: qts cache status",
    no_args_is_help=True,
)


@app.command()
def status(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the server, how many keys of each kind there are, and how running processes fare.

    Example: qts cache status --json
    """
    from qts.cache import inspect_server

    found = _with_store(config, inspect_server)
    if as_json:
        print_json(found)
    else:
        typer.echo("\n".join(_lines(found)))


@app.command()
def get(
    kind: Annotated[str, typer.Argument(help="price, position, book, risk, order or strategy.")],
    name: Annotated[str, typer.Argument(help="A symbol, an account, an order or a strategy.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one value as Redis holds it.

    Example: qts cache get price 005930
    """
    from qts.cache import read_raw

    found = _with_store(config, lambda store, settings: read_raw(store, settings, kind, name))
    if found is None:
        raise OperationError(f"the cache holds no {kind} of {name}")
    if as_json:
        print_json(found)
    else:
        width = max(map(len, found))
        typer.echo("\n".join(f"{field:<{width}}  {value}" for field, value in found.items()))


@app.command()
def flush(
    config: ConfigOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete the keys of QTS, and no other, after asking. The database is not touched.

    Example: qts cache flush --yes
    """
    if not yes and not sys.stdin.isatty():
        raise RefusedError(
            "qts cache flush asks before it deletes; add --yes where nobody can answer"
        )

    async def ask_and_delete(store: CacheStore, settings: CacheConfig) -> int:
        keys = await store.keys(settings.prefix)
        if not yes and not typer.confirm(
            f"Delete {len(keys)} keys that begin with {settings.prefix}?"
        ):
            raise typer.Abort
        return sum([await store.delete(keys[at : at + BATCH]) for at in range(0, len(keys), BATCH)])

    typer.echo(f"deleted {_with_store(config, ask_and_delete)} keys")


def _with_store(config: Path | None, ask: Callable[[CacheStore, CacheConfig], Awaitable[T]]) -> T:
    from qts.app import open_store
    from qts.config import load

    async def answer() -> T:
        settings = load(config, os.environ)
        async with open_store(settings) as store:
            return await ask(store, settings.cache)

    return asyncio.run(answer())


def _lines(found: Found) -> list[str]:
    server = found.server
    used = f"{server.used_memory / 1e6:.1f} MB"
    if server.max_memory:
        used += f" of {server.max_memory / 1e6:.0f} MB"
    keys = Counter(found.keys)
    return [
        f"server   {server.version}, {used}, {server.clients} clients, "
        f"{server.evicted_keys} keys evicted",
        "keys     " + (", ".join(f"{kind} {count}" for kind, count in keys.items()) or "none"),
        *(line for pid, status in found.processes.items() for line in _process(pid, status)),
    ]


def _process(pid: str, status: CacheStatus) -> list[str]:
    lines = [
        f"process  {pid}: circuit {status.breaker}, opened {status.breaker_opened} times; "
        f"{status.queue.depth} writes wait; PreCheck p50 {status.precheck_p50_us:.0f} us, "
        f"p99 {status.precheck_p99_us:.0f} us"
    ]
    for kind, seen in status.kinds.items():
        if seen.hit_rate is not None:
            goal = f", goal {seen.goal:.0%}" if seen.goal else ""
            lines.append(f"  {kind:<9} {seen.hit_rate:.1%} of {seen.recent} found{goal}")
    return lines + [
        f"  {each.severity.upper()}: {each.rule}: {each.text}" for each in status.alerts()
    ]
