"""`qts top`: live status in the terminal."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qts.cli.console import AccountOption, ConfigOption, chosen_account
from qts.cli.safety import user_name
from qts.domain import RefusedError

SCHEMA = 30  # adds the status of runs

if TYPE_CHECKING:
    from qts.config import Config
    from qts.dashboard import Top


def top(
    config: ConfigOption = None,
    account: AccountOption = None,
    once: Annotated[bool, typer.Option("--once", help="Print everything once as text.")] = False,
) -> None:
    """Live status in the terminal.

    Shows lanes, orders, positions, feed and alerts of a running QTS, and all runs on its
    database. Keys: tab, r chooses a run, k stops trading, q quits. Exit code of --once: 0: the run
    reports, 1: it does not run or hangs.

    Example: qts top
    """
    from qts.config import load

    if not once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise RefusedError("qts top needs a terminal; --once prints the status as text")
    asyncio.run(_top(load(config, os.environ), once, config, account))


async def _top(config: Config, once: bool, file: Path | None, account: str | None) -> None:
    from qts.app import open_database, open_status_store, run_accounts
    from qts.dashboard import LiveStatusSource, frame
    from qts.database import require_schema

    application = None if once else _application()
    keys = list(run_accounts(config).values())
    prefix = config.cache.of_account(keys[0].account).prefix
    async with open_status_store(config) as store, open_database(config) as database:
        await require_schema(database, SCHEMA)
        source = LiveStatusSource(store, database, prefix, *keys)
        if account is not None:
            await source.choose(str(await chosen_account(database, file, None, account)))
        if application is None:
            snapshot = await source.read()
            typer.echo(frame(snapshot))
            if (snapshot.live is None and snapshot.run != "remote") or snapshot.trouble:
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
