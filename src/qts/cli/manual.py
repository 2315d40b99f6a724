"""Manual orders: confirmed on the terminal, handed to the running QTS, waited for."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from qts.cli.console import load_config, parse_uuid, print_json
from qts.domain import AccountKey, OperationError, RefusedError

if TYPE_CHECKING:
    from qts.dashboard import Action, Operator
    from qts.database import Database

SCHEMA = 24  # adds manual commands
PROGRESS_S = 2.0

IdOption = Annotated[
    str | None,
    typer.Option(
        "--id",
        metavar="UUID",
        help="Id of the command. Repeated with the same id, it orders nothing again and prints the"
        " outcome of the first.",
    ),
]


def command_id(text: str | None) -> UUID:
    """Return the id that was given, or a new one."""
    from qts.outbox import uuid7

    return uuid7() if text is None else parse_uuid(text, "an id; expected a UUID")


def confirm(lines: Sequence[str], question: str, *, yes: bool) -> None:
    """Say what will happen and ask; refuse where nobody can answer."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise RefusedError("--yes is missing; without a terminal nobody can confirm this")
    for line in lines:
        typer.echo(line, err=True)
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


async def carry_out(
    config: Path | None,
    database: Database,
    accounts: Sequence[AccountKey],
    action: Action,
    *,
    as_json: bool,
) -> int:
    """Hand an action to the running QTS and print its outcome; return the exit code."""
    from qts.dashboard import ActionService, ManualOrderError

    service = ActionService(database, accounts, load_config(config).outbox.streams, None)
    id_ = action.log_fields["id"]
    error: ManualOrderError | None = None
    try:
        async with _progress(f"handed to the running QTS as {id_}"):
            done = await service.perform(action, cli_operator())
            commands, message = list(done.commands), done.message
    except ManualOrderError as failed:
        commands, message, error = failed.commands, str(failed), failed
    if as_json:
        states = [{"state": each.state, **_fields(each.result)} for each in commands]
        print_json({"id": id_, "done": error is None, "message": message, "commands": states})
    elif error is None:
        typer.echo(message)
        for each in commands:
            for order in each.result.orders if each.result else ():
                typer.echo(f"order {order.intent_id}")
    else:
        raise error
    return 1 if error else 0


def _fields(result: Any) -> dict[str, Any]:
    import msgspec

    return {} if result is None else msgspec.structs.asdict(result)


def cli_operator() -> Operator:
    """Return who types this, for the log of actions."""
    from qts.cli.safety import user_name
    from qts.dashboard import Operator, Role

    return Operator(f"cli {user_name()}", Role.TRADE, "local")


@contextlib.asynccontextmanager
async def _progress(text: str) -> AsyncIterator[None]:
    """Say on a terminal that the command waits, and for how long."""

    async def tell() -> None:
        typer.echo(text, err=True)
        waited_s = 0.0
        while True:
            await asyncio.sleep(PROGRESS_S)
            waited_s += PROGRESS_S
            typer.echo(f"waiting for its outcome, {waited_s:.0f} s", err=True)

    task = asyncio.create_task(tell()) if sys.stderr.isatty() else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()


async def live_prices(config: Path | None, key: AccountKey) -> dict[str, Decimal]:
    """Return the prices of what the running QTS holds; none where its status is not readable."""
    from qts.app import open_store, run_accounts
    from qts.dashboard import read_live

    settings = load_config(config)
    first = next(iter(run_accounts(settings).values()), key)
    prefix = settings.cache.of_account(first.account).prefix
    try:
        async with open_store(settings) as store:
            live = await read_live(store, prefix)
    except (OperationError, ValueError):
        return {}
    return {} if live is None else {each.symbol: each.price for each in live.positions}


async def close_preview(
    config: Path | None, database: Database, keys: Sequence[AccountKey], symbol: str | None
) -> list[str]:
    """Return what closing a symbol, or everything, will do; nothing where nothing is open."""
    from qts.dashboard import preview_close

    found = await preview_close(database, keys, symbol, await live_prices(config, keys[0]))
    lines = list(found.lines)
    if found.is_stopped:
        lines.append("The kill switch is on: this will be refused, run qts kill off first.")
    if lines:
        lines.append("Strategies go on and may buy again; qts kill on --strategy KEY stops one.")
    return lines
