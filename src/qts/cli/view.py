"""`qts dashboard` and `qts top`: live status in the browser and in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qts.cli.console import ConfigOption
from qts.cli.safety import user_name
from qts.domain import RefusedError

if TYPE_CHECKING:
    from qts.app import DashboardLaunch
    from qts.config import Config
    from qts.dashboard import Top


def dashboard(
    config: ConfigOption = None,
    link: Annotated[
        str | None,
        typer.Option(
            "--link", metavar="ROLE", help="Print a login link (read, trade or admin) and stop."
        ),
    ] = None,
    new_tokens: Annotated[
        bool, typer.Option("--new-tokens", help="Replace the tokens; every login ends.")
    ] = False,
    launched: Annotated[bool, typer.Option("--launched", hidden=True)] = False,
) -> None:
    """Live status in the browser.

    Serves the dashboard of a running QTS until Ctrl-C; `qts run` starts one itself.

    Example: qts dashboard --link admin
    """
    from qts.app import DashboardLaunch, dashboard_launch, login_link
    from qts.config import load

    if launched:
        _serve(DashboardLaunch.decode(sys.stdin.buffer.read()), quiet=True)
        return
    settings = load(config, os.environ)
    if link is not None or new_tokens:
        typer.echo(login_link(settings, link or "admin", renew=new_tokens))
        return
    _serve(dashboard_launch(settings), quiet=False)


def _serve(launch: DashboardLaunch, *, quiet: bool) -> None:
    import uvloop

    from qts.app import serve_dashboard

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[str] = loop.create_future()
        serving = asyncio.ensure_future(serve_dashboard(launch, ready))
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, serving.cancel)
        first: set[asyncio.Future[Any]] = {serving, ready}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if ready.done() and not quiet:
            typer.echo(f"dashboard  {ready.result()}")
            typer.echo("Serving until Ctrl-C.")
        with contextlib.suppress(asyncio.CancelledError):
            await serving

    uvloop.run(serve())


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
