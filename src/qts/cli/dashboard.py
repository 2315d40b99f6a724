"""`qts dashboard`: the owner's web view, beside a run or by itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qts.cli.options import ConfigOption

if TYPE_CHECKING:
    from qts.app import DashboardLaunch


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
