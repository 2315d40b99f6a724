"""`qts ops state`: states that strategies keep over restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from qts.cli.console import AccountOption, ConfigOption, JsonOption, print_json, with_account
from qts.cli.groups import command_group
from qts.domain import RefusedError, name_choices

if TYPE_CHECKING:
    from qts.database import Database
    from qts.domain import AccountKey

SCHEMA = 23  # adds the states

app = command_group("States of strategies: list, clear.", "qts ops state list")


@app.command(name="list")
def list_(
    account: AccountOption = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """List the stored states of an account.

    Example: qts ops state list --json
    """
    from qts.pipeline import list_states

    rows = with_account(config, list_states, account=account, schema=SCHEMA)
    if as_json:
        print_json({"states": rows})
        return
    for row in rows:
        typer.echo(
            f"{row.strategy_key}  {row.size_bytes:,} bytes, {row.updated_at:%Y-%m-%d %H:%M:%S}"
        )
        for name, value in row.state.items():
            typer.echo(f"  {name:<16}{value}")
    if not rows:
        typer.echo("no states")


@app.command()
def clear(
    strategy: Annotated[str, typer.Argument(metavar="KEY", help="The strategy's key.")],
    account: AccountOption = None,
    config: ConfigOption = None,
) -> None:
    """Remove the stored state of a strategy: it begins with the defaults at the next start.

    Example: qts ops state clear mine
    """
    from qts.brokers import is_account_locked
    from qts.pipeline import clear_state, list_states

    async def run(database: Database, key: AccountKey) -> None:
        if await is_account_locked(database, key):
            raise RefusedError(f"a run trades account {key}; stop it before its states are changed")
        if not await clear_state(database, key, strategy):
            known = [each.strategy_key for each in await list_states(database, key)]
            raise RefusedError(
                f"strategy {strategy!r} has no stored state; expected"
                f" {name_choices(strategy, known)}"
            )

    with_account(config, run, account=account, schema=SCHEMA)
    typer.echo(f"the state of {strategy} is removed")
