"""`qts ops degrade`: the degradation level of the running QTS."""

from __future__ import annotations

from typing import Annotated

import typer

from qts.cli.console import AccountOption, ConfigOption, with_account
from qts.domain import RefusedError, SystemClock, name_choices

AUTO = "auto"


def degrade(
    level: Annotated[
        str,
        typer.Argument(
            metavar="LEVEL",
            help="normal, p3_paused, p2_p3_paused, critical_only; auto: by the load.",
        ),
    ],
    account: AccountOption = None,
    config: ConfigOption = None,
) -> None:
    """Set the degradation level of the running QTS.

    It lasts until the run ends, or until auto returns to the level of the load.

    Example: qts ops degrade p3_paused
    """
    from qts.app import request_level
    from qts.events import DegradationLevel

    levels = {each.name.lower(): each for each in DegradationLevel}
    if level.lower() not in (*levels, AUTO):
        raise RefusedError(
            f"LEVEL is {level!r}; expected one of {name_choices(level.lower(), [*levels, AUTO])}"
        )
    chosen, now = levels.get(level.lower()), SystemClock().now()
    with_account(
        config, lambda database, key: request_level(database, key, chosen, now), account=account
    )
    typer.echo(f"requested {level.lower()}; the running QTS applies it, see qts top")
