"""`qts ops alerts`: open alerts of the runs, and their acknowledgement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from qts.cli.console import (
    AccountsOption,
    ConfigOption,
    JsonOption,
    load_config,
    print_json,
    with_run_accounts,
)
from qts.cli.groups import command_group
from qts.domain import RefusedError

if TYPE_CHECKING:
    from qts.database import Database
    from qts.domain import AccountKey
    from qts.notify import StoredAlert

SCHEMA = 25  # adds alerts

app = command_group(
    "Alerts of the runs: open until they are acknowledged.",
    "qts ops alerts list",
    "Alerts: list, acknowledge",
)


@app.command(name="list")
def list_(
    every: Annotated[bool, typer.Option("--all", help="Include acknowledged alerts.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of rows.")] = 50,
    account: AccountsOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List open alerts, newest first.

    Example: qts ops alerts list --all
    """
    from qts.notify import AlertStore

    async def read(database: Database, keys: list[AccountKey]) -> list[StoredAlert]:
        return await AlertStore(database, keys).rows(limit, acknowledged=every)

    rows = with_run_accounts(config, read, account, SCHEMA)
    if as_json:
        print_json({"alerts": rows})
    else:
        typer.echo("\n".join(map(_line, rows)) or "no open alerts")


@app.command()
def ack(
    ids: Annotated[
        list[int] | None, typer.Argument(metavar="ALERT", help="Alerts, from the list; or --all.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All that are open.")] = False,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Kept with it.")] = "",
    account: AccountsOption = None,
    config: ConfigOption = None,
) -> None:
    """Acknowledge alerts: who and when is kept, and they leave the list.

    Example: qts ops alerts ack 12 --reason "venue maintenance"
    """
    from qts.cli.manual import cli_operator
    from qts.dashboard import AcknowledgeAlertsAction, ActionService

    if bool(ids) == every:
        raise RefusedError("expected ALERT or --all, and not both")

    async def run(database: Database, keys: list[AccountKey]) -> str:
        service = ActionService(database, keys, load_config(config).outbox.streams, None)
        action = AcknowledgeAlertsAction(ids=ids or None, reason=reason)
        return (await service.perform(action, cli_operator())).message

    typer.echo(with_run_accounts(config, run, account, SCHEMA))


def _line(row: StoredAlert) -> str:
    times = f" ({row.times} times)" if row.times > 1 else ""
    code = f"{row.code} " if row.code else ""
    note = f": {row.note}" if row.note else ""
    done = (
        f"  acknowledged {row.acknowledged_at:%F %T} by {row.acknowledged_by}{note}"
        if row.acknowledged_at
        else ""
    )
    return f"{row.id:<6}{row.last_at:%F %T}  {row.severity:<9}{code}{row.message}{times}{done}"
