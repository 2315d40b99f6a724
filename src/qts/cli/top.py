"""`qts top`: the owner's view in a terminal."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from qts.cli.options import ConfigOption
from qts.cli.safety import who
from qts.domain import RefusedError

if TYPE_CHECKING:
    from qts.config import Config
    from qts.dashboard import Top


def top(
    config: ConfigOption = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print everything once, as text, and end.")
    ] = False,
) -> None:
    """Watch a QTS that runs: lanes, orders, positions, feed, alerts. Keys: tab, k stops, q quits.

    Example: qts top
    """
    from qts.config import load

    if not once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise RefusedError("qts top needs a terminal; --once prints the figures as text")
    asyncio.run(_watch(load(config, os.environ), once))


async def _watch(config: Config, once: bool) -> None:
    from qts.app import open_database, open_store
    from qts.dashboard import LiveStatusSource, frame

    view = None if once else _view()
    async with open_store(config) as store, open_database(config) as database:
        source = LiveStatusSource(store, database, config.cache.prefix)
        if view is None:
            typer.echo(frame(await source.look()))
        else:
            await view(source, who()).run_async()


def _view() -> type[Top]:
    try:
        from qts.dashboard import Top
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "textual":
            raise
        raise RefusedError(
            "qts top needs textual; install it with: pip install 'qts[top]'"
        ) from None
    return Top
