"""`qts ops lease` and `qts ops handover`: which run trades an account, and the planned switch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from qts.cli.console import AccountOption, ConfigOption, JsonOption, print_json, with_run_accounts

if TYPE_CHECKING:
    from qts.brokers import LeaseStatus
    from qts.database import Database
    from qts.domain import AccountKey

SCHEMA = 29  # adds the lease


def lease(
    account: AccountOption = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Show which run holds an account, its epoch, and which runs stand by.

    Example: qts ops lease
    """
    from qts.brokers import read_lease

    async def read(database: Database, keys: list[AccountKey]) -> list[LeaseStatus]:
        return [await read_lease(database, key) for key in keys]

    found = with_run_accounts(config, read, account, SCHEMA)
    if as_json:
        print_json({"accounts": found})
    else:
        typer.echo("\n".join(map(_line, found)))


def handover(account: AccountOption = None, config: ConfigOption = None) -> None:
    """Let the standby take over: the active run finishes its orders and ends.

    Refused without an active run or a standby.

    Example: qts ops handover
    """
    from qts.app import hand_over

    found = with_run_accounts(config, hand_over, account, SCHEMA)
    typer.echo("\n".join(map(_line, found)))


def _line(lease: LeaseStatus) -> str:
    from qts.app import describe_lease

    standbys = ", ".join(lease.standbys) or "none"
    requested = "; handover requested" if lease.is_held and lease.handover_at else ""
    return f"{lease.account}  {describe_lease(lease)}{requested}; standby: {standbys}"
