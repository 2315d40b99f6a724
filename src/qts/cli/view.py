"""`qts top`: live status in the terminal."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from qts.cli.console import ConfigOption
from qts.cli.safety import user_name
from qts.domain import RefusedError

if TYPE_CHECKING:
    from qts.config import Config
    from qts.dashboard import Top


def top(
    config: ConfigOption = None,
    once: Annotated[bool, typer.Option("--once", help="Print everything once as text.")] = False,
) -> None:
    """Live status in the terminal.

    Shows lanes, orders, positions, feed and alerts of a running QTS. Keys: tab, k stops trading,
    q quits. Exit code of --once: 0: the run reports, 1: it does not run or hangs.

    Example: qts top
    """
    from qts.config import load

    if not once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise RefusedError("qts top needs a terminal; --once prints the status as text")
    asyncio.run(_top(load(config, os.environ), once))


async def _top(config: Config, once: bool) -> None:
    from qts.app import open_database, open_store, run_accounts
    from qts.dashboard import LiveStatusSource, frame

    application = None if once else _application()
    keys = list(run_accounts(config).values())
    prefix = config.cache.of_account(keys[0].account).prefix
    async with open_store(config) as store, open_database(config) as database:
        source = LiveStatusSource(store, database, prefix, *keys)
        if application is None:
            snapshot = await source.read()
            typer.echo(frame(snapshot))
            if snapshot.live is None or snapshot.trouble:
                raise typer.Exit(1)
        else:
            await application(source, user_name()).run_async()


def _application() -> type[Top]:
    try:
        from qts.dashboard import Top
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "textual":
            raise
        raise RefusedError(
            "qts top needs textual; install it with: pip install 'qts[top]'"
        ) from None
    return Top
