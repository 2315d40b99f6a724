"""`qts retrace`: the decisions of a recorded run, made again and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qts.cli.output import JsonFile


def retrace(
    journal: Annotated[
        Path, typer.Argument(metavar="JOURNAL", help="A file of the folder pipeline.journal.")
    ],
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the result; - prints it.")
    ] = None,
) -> int:
    """Decide a recorded run again, from what its decisions hung on: 0 when every one is the same.

    A run keeps its journal where `pipeline.journal` names a folder. The strategies are loaded as
    they are now: one that was changed since decides differently, and is told of.

    Example: qts retrace journal/20261116T000000.000000.journal
    """
    from qts.pipeline import replay_decisions as decide_again

    report = JsonFile(json_file)
    found = decide_again(journal)
    report.write(found)
    if not report.prints:
        typer.echo(
            f"{found.calls:,} calls of strategies with {found.signals:,} signals, "
            f"{found.cycles:,} cycles with {found.decisions:,} decisions, "
            f"{found.answers:,} answers of the gate"
        )
        for line in found.differences:
            typer.echo(line)
        typer.echo("all as they were" if not found.different else f"{found.different:,} differ")
    return 1 if found.different else 0
