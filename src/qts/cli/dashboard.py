"""Live status: `qts dashboard` in the browser and for programs, `qts top` in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qts.cli.console import (
    AccountOption,
    ConfigOption,
    JsonOption,
    chosen_account,
    print_json,
    with_database,
)
from qts.cli.groups import command_group
from qts.cli.manual import cli_operator
from qts.cli.safety import user_name
from qts.domain import RefusedError

if TYPE_CHECKING:
    from qts.app import DashboardLaunch
    from qts.config import Config
    from qts.dashboard import ApiToken, Top

TOKEN_SCHEMA = 26  # adds tokens of programs

dashboard = command_group(
    "Live status in the browser, and the API for programs. Without a command it serves the"
    " dashboard of a running QTS until Ctrl-C; `qts run` starts one itself.",
    "qts dashboard --link admin",
    "Live status in the browser; token, openapi: the API for programs",
)
token = command_group(
    "Tokens of programs for the API: create, list, revoke.",
    "qts dashboard token create --name bot --role read --days 30",
    "Tokens of programs: create, list, revoke",
)
dashboard.add_typer(token, name="token")


@dashboard.callback(invoke_without_command=True)
def serve(
    context: typer.Context,
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
    if context.invoked_subcommand is not None:
        return
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


@dashboard.command()
def openapi() -> None:
    """Print the OpenAPI document of the API.

    Example: qts dashboard openapi
    """
    from qts.dashboard import openapi_document

    print_json(openapi_document())


@token.command()
def create(
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the program.")],
    role: Annotated[str, typer.Option(metavar="ROLE", help="read, trade or admin.")],
    days: Annotated[int, typer.Option(metavar="N", help="Days until it expires.")] = 30,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a token and print it, once: only a digest of it is stored.

    Example: qts dashboard token create --name bot --role read --days 30
    """
    from qts.dashboard import ApiTokens

    made, secret = with_database(
        config,
        lambda database: ApiTokens(database).create(name, role, days, cli_operator()),
        TOKEN_SCHEMA,
    )
    if as_json:
        print_json({"token": secret.reveal(), "name": made.name, "expires_at": made.expires_at})
    else:
        typer.echo(secret.reveal())
        typer.echo(
            f"{made.name} may {made.role} until {made.expires_at:%Y-%m-%d}; it is not shown again",
            err=True,
        )


@token.command(name="list")
def list_(
    every: Annotated[bool, typer.Option("--all", help="Include revoked tokens.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the tokens, newest first.

    Example: qts dashboard token list
    """
    from qts.dashboard import ApiTokens

    rows = with_database(
        config, lambda database: ApiTokens(database).rows(revoked=every), TOKEN_SCHEMA
    )
    if as_json:
        print_json({"tokens": rows})
    else:
        typer.echo("\n".join(map(_token_line, rows)) or "no tokens")


@token.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The token, from the list.")],
    config: ConfigOption = None,
) -> None:
    """Revoke a token: its next request is refused.

    Example: qts dashboard token revoke bot
    """
    from qts.dashboard import ApiTokens

    with_database(
        config, lambda database: ApiTokens(database).revoke(name, cli_operator()), TOKEN_SCHEMA
    )
    typer.echo(f"{name} is revoked")


def _token_line(row: ApiToken) -> str:
    revoked = f"  revoked {row.revoked_at:%Y-%m-%d %H:%M}" if row.revoked_at else ""
    until = f"until {row.expires_at:%Y-%m-%d %H:%M}"
    return f"{row.name:<20}{row.role:<7}{until}  by {row.created_by}{revoked}"


STATUS_SCHEMA = 30  # adds the status of runs


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
        await require_schema(database, STATUS_SCHEMA)
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
