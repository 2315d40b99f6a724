"""`qts ops actions`: the log of what operators did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from qts.cli.console import ConfigOption, JsonOption, print_json, with_database

if TYPE_CHECKING:
    from qts.dashboard import ActionRow

SCHEMA = 11  # adds the log of actions


def actions(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of rows.")] = 50,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List what operators did: who, what and why.

    Newest first: actions on the dashboard or by Telegram, and manual orders and closes.

    Example: qts ops actions --limit 20
    """
    from qts.dashboard import ActionLog

    rows = with_database(config, lambda database: ActionLog(database).rows(limit), SCHEMA)
    if as_json:
        print_json({"actions": rows})
    else:
        typer.echo("\n".join(map(_line, rows)) or "no actions")


def _line(row: ActionRow) -> str:
    reason = f" ({row.detail['reason']})" if row.detail.get("reason") else ""
    what = f"{row.action} {row.target}".strip()
    message = f": {row.message}" if row.message else ""
    return f"{row.at:%Y-%m-%d %H:%M:%S}  {row.actor}  {what}{reason}  {row.outcome}{message}"
