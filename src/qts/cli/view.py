"""`qts dashboard`: the owner's web view, beside a run or by itself.

`qts top`: the owner's view in a terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qts.cli.console import ConfigOption
from qts.cli.safety import who
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
        bool, typer.Option("--new-tokens", help="Make other tokens; every login ends.")
    ] = False,
    handed: Annotated[bool, typer.Option("--handed", hidden=True)] = False,
) -> None:
    """Show a running QTS in a browser until Ctrl-C; qts run starts one by itself.

    Example: qts dashboard --link admin
    """
    from qts.app import DashboardLaunch, dashboard_launch, login_link
    from qts.config import load

    if handed:
        _serve(DashboardLaunch.decode(sys.stdin.buffer.read()), quiet=True)
        return
    settings = load(config, os.environ)
    if link is not None or new_tokens:
        typer.echo(login_link(settings, link or "admin", anew=new_tokens))
        return
    _serve(dashboard_launch(settings), quiet=False)


def _serve(handed: DashboardLaunch, *, quiet: bool) -> None:
    import uvloop

    from qts.app import serve_dashboard

    async def serving() -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[str] = loop.create_future()
        work = asyncio.ensure_future(serve_dashboard(handed, ready))
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, work.cancel)
        waited: set[asyncio.Future[Any]] = {work, ready}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if ready.done() and not quiet:
            typer.echo(f"dashboard  {ready.result()}")
            typer.echo("Until Ctrl-C.")
        with contextlib.suppress(asyncio.CancelledError):
            await work

    uvloop.run(serving())


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
