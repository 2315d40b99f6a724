"""`qts kill` and `qts failsafe`: stop trading, and let it go on."""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qts.cli.console import ConfigOption, JsonOption, print_json, with_database
from qts.domain import RefusedError

if TYPE_CHECKING:
    from qts.database import Database

SCHEMA = 4  # the one that brought the fail-safe

StrategyOption = Annotated[
    str | None, typer.Option("--strategy", metavar="KEY", help="Only this strategy.")
]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why, for the log.")]

kill = typer.Typer(
    help="The kill switch: on stops every new order within a second, off allows them again.",
    epilog="Example: qts kill on --reason 'fat finger'",
    no_args_is_help=True,
)
failsafe = typer.Typer(
    help="The fail-safe: NORMAL, WARNING, FAIL, LOCKDOWN.",
    epilog="Example: qts failsafe status",
    no_args_is_help=True,
)


@kill.command()
def on(
    strategy: StrategyOption = None, reason: ReasonOption = "", config: ConfigOption = None
) -> None:
    """Stop: no new order leaves. Orders at the venue stay there; cancels still flow.

    Example: qts kill on --reason "leaving for the day"
    """
    _switch(config, False, strategy, reason)


@kill.command()
def off(
    strategy: StrategyOption = None, reason: ReasonOption = "", config: ConfigOption = None
) -> None:
    """Allow orders again.

    Example: qts kill off --reason "looked at it"
    """
    _switch(config, True, strategy, reason)


@kill.command(name="status")
def switches(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show who may trade; what was never set may not.

    Example: qts kill status --json
    """
    from qts.risk import KillSwitch

    found = with_database(config, lambda database: KillSwitch(database).all(), SCHEMA)
    if as_json:
        print_json({"switches": found})
        return
    if not found:
        typer.echo("nothing was ever allowed to trade here")
    for name, switch in found.items():
        word = "may trade" if switch.enabled else "STOPPED"
        reason = f": {switch.reason}" if switch.reason else ""
        typer.echo(f"{name:<24}{word:<11}{switch.changed_at:%F %T}  {switch.changed_by}{reason}")


@failsafe.command()
def status(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Lines of the log.")] = 10,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the state and the last lines of its log.

    Example: qts failsafe status --limit 50
    """
    from qts.risk import FailSafe

    async def ask(database: Database) -> tuple[Any, Any]:
        safe = FailSafe(database)
        return await safe.now(), await safe.log(limit)

    now, lines = with_database(config, ask, SCHEMA)
    if as_json:
        print_json({"safety": now, "log": lines})
        return
    why = f"  {now.code} {now.message}" if now.code else ""
    typer.echo(f"{now.state}  since {now.since:%F %T}{why}")
    for line in lines:
        moved = f"{line.state_before} > {line.state_after}"
        typer.echo(f"{line.at:%F %T}  {line.code:<8}{moved:<20}{line.actor:<10}{line.message}")


@failsafe.command()
def release(
    reason: Annotated[str, typer.Option("--reason", help="What you looked at.")],
    config: ConfigOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Let trading go on after FAIL or LOCKDOWN. Look first: nothing else ends a LOCKDOWN.

    Example: qts failsafe release --reason "positions compared by hand" --yes
    """
    from qts.risk import FailSafe

    if not yes and not typer.confirm("Trading goes on after this. Have you looked?"):
        raise typer.Exit(1)
    now = with_database(config, lambda database: FailSafe(database).release(who(), reason), SCHEMA)
    typer.echo(f"{now.state}")


@failsafe.command()
def codes(as_json: JsonOption = False) -> None:
    """List every code and what it does.

    Example: qts failsafe codes
    """
    from qts.risk import CODES

    if as_json:
        print_json({"codes": list(CODES.values())})
        return
    for code in CODES.values():
        typer.echo(f"{code.code}  {code.effect:<9}{code.text}")


def _switch(config: Path | None, enabled: bool, strategy: str | None, reason: str) -> None:
    from qts.risk import KillSwitch

    if strategy is not None and not strategy.strip():
        raise RefusedError("--strategy is empty; name one, or leave it out for the whole account")
    with_database(
        config,
        lambda database: KillSwitch(database).set(enabled, who(), reason, strategy),
        SCHEMA,
    )
    whom = f"strategy {strategy}" if strategy else "the account"
    typer.echo(f"{whom} {'may trade' if enabled else 'is STOPPED'}")


def who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
