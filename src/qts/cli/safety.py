"""`qts kill` and `qts failsafe`: stop trading and allow it again."""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qts.cli.console import (
    AccountOption,
    ConfigOption,
    JsonOption,
    StrategyOption,
    YesOption,
    load_config,
    print_json,
    with_account,
    with_each_account,
)
from qts.cli.groups import command_group
from qts.domain import RefusedError

if TYPE_CHECKING:
    from qts.database import Database
    from qts.domain import AccountKey

ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Kept in the log.")]

kill = command_group(
    "Kill switch: `on` stops every new order within a second, `off` allows them again.",
    "qts kill on --reason 'fat finger'",
    "Kill switch: on, off, status",
)
failsafe = command_group(
    "Fail-safe with the states NORMAL, WARNING, FAIL and LOCKDOWN.",
    "qts failsafe status",
    "Fail-safe: status, release, codes",
)


@kill.command()
def on(
    strategy: StrategyOption = None,
    reason: ReasonOption = "",
    account: AccountOption = None,
    config: ConfigOption = None,
) -> None:
    """Stop trading: no new order is sent. Orders at the venue stay; cancels are still sent.

    Stop orders that would open a position are cancelled, those that reduce one wait.

    Example: qts kill on --reason "leaving for the day"
    """
    _switch(config, False, strategy, reason, account)


@kill.command()
def off(
    strategy: StrategyOption = None,
    reason: ReasonOption = "",
    account: AccountOption = None,
    config: ConfigOption = None,
) -> None:
    """Allow orders again.

    Example: qts kill off --reason "positions checked"
    """
    _switch(config, True, strategy, reason, account)


@kill.command(name="status")
def switches(
    account: AccountOption = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Show every switch; a strategy without one may not trade.

    Example: qts kill status --json
    """
    from qts.risk import KillSwitch

    read = with_each_account(config, lambda database, key: KillSwitch(database, key).all(), account)
    if as_json:
        print_json({"switches": read[""]} if "" in read else {"venues": read})
        return
    for venue, found in read.items():
        if venue:
            typer.echo(venue)
        if not found:
            typer.echo("no switch of this account was ever set: nothing may trade")
        for name, switch in found.items():
            state = "may trade" if switch.enabled else "STOPPED"
            reason = f": {switch.reason}" if switch.reason else ""
            typer.echo(
                f"{name:<24}{state:<11}{switch.changed_at:%F %T}  {switch.changed_by}{reason}"
            )


@failsafe.command()
def status(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of log lines.")] = 10,
    account: AccountOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the state and the last lines of its log.

    Example: qts failsafe status --limit 50
    """
    from qts.risk import FailSafe

    async def read(database: Database, key: AccountKey) -> tuple[Any, Any]:
        safe = FailSafe(database, key)
        return await safe.now(), await safe.log(limit)

    found = with_each_account(config, read, account)
    shown = {venue: {"safety": now, "log": lines} for venue, (now, lines) in found.items()}
    if as_json:
        print_json(shown.get("", {"venues": shown}))
        return
    for venue, (now, lines) in found.items():
        reason = f"  {now.code} {now.message}" if now.code else ""
        typer.echo(f"{venue}  {now.state}  since {now.since:%F %T}{reason}".lstrip())
        for line in lines:
            change = f"{line.state_before} > {line.state_after}"
            typer.echo(f"{line.at:%F %T}  {line.code:<8}{change:<20}{line.actor:<10}{line.message}")


@failsafe.command()
def release(
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="What you checked.")],
    account: AccountOption = None,
    config: ConfigOption = None,
    yes: YesOption = False,
) -> None:
    """Resume trading after FAIL or LOCKDOWN. Only this command ends a LOCKDOWN: check first.

    Example: qts failsafe release --reason "positions reconciled with the venue" --yes
    """
    from qts.risk import FailSafe

    if not yes and not typer.confirm("Trading resumes after this. Have you checked positions?"):
        raise typer.Exit(1)
    now = with_account(
        config,
        lambda database, key: FailSafe(database, key).release(user_name(), reason),
        account=account,
    )
    typer.echo(f"{now.state}")


@failsafe.command()
def codes(as_json: JsonOption = False) -> None:
    """List every code and its effect.

    Example: qts failsafe codes
    """
    from qts.risk import CODES

    if as_json:
        print_json({"codes": list(CODES.values())})
        return
    for code in CODES.values():
        typer.echo(f"{code.code}  {code.effect:<9}{code.text}")


def _switch(
    config: Path | None, enabled: bool, strategy: str | None, reason: str, account: str | None
) -> None:
    from qts.risk import KillSwitch

    if strategy is not None and not strategy.strip():
        raise RefusedError("--strategy is empty; name one, or leave it out for the whole account")

    async def change(database: Database, key: AccountKey) -> AccountKey:
        switch = KillSwitch(database, key)
        if strategy is not None:
            await switch.check_strategy(strategy, lambda: load_config(config).strategy_names())
        await switch.set(enabled, user_name(), reason, strategy)
        return key

    for key in with_each_account(config, change, account).values():
        subject = f"strategy {strategy} of account {key}" if strategy else f"account {key}"
        typer.echo(f"{subject} {'may trade' if enabled else 'is STOPPED'}")


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
