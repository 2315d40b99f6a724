"""`qts run`: the main job."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from qts.cli.options import ConfigOption
from qts.cli.output import JsonFile
from qts.domain import parse_duration

if TYPE_CHECKING:
    from qts.app import Ready, Summary


def run(
    config: ConfigOption = None,
    lasting: Annotated[
        str | None,
        typer.Option("--for", metavar="SPAN", help="Stop after this long: 500ms, 60s, 2h."),
    ] = None,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write the summary as JSON; - prints it."),
    ] = None,
    servers_only: Annotated[
        bool, typer.Option("--servers-only", help="Start the servers and trade nothing.")
    ] = False,
) -> int:
    """Run everything until Ctrl-C, on embedded servers unless the settings name others.

    Without a key in the settings the market is a simulated one; orders go to the paper broker
    unless the settings say otherwise.

    Example: qts run --for 60s --json summary.json
    """
    from qts.app import build
    from qts.config import load

    seconds = parse_duration(lasting) if lasting else None
    report = JsonFile(json_file)
    show = _Show(_console(report.prints), seconds)
    summary = build(load(config, os.environ)).run(seconds, show, trade=not servers_only)
    show.ended(summary)
    report.write(summary.to_json())
    return 0 if summary.verdict == "OK" else 1


def _console(on_stderr: bool) -> Console:
    console = Console(stderr=on_stderr, highlight=False)
    if not console.is_terminal:
        console.width = 200  # whoever reads this from a pipe wants whole lines
    return console


class _Show:
    """Tells the owner, on the terminal, how the run goes."""

    def __init__(self, console: Console, seconds: float | None) -> None:
        self._console = console
        self._until = f"for {seconds:g} s" if seconds else "until Ctrl-C"

    def starting(self) -> None:
        self._console.print(f"[bold]QTS {version('qts')}[/bold] starting ...")

    def ready(self, ready: Ready) -> None:
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
        for heading in ("service", "version", "runs as", "where"):
            table.add_column(heading, header_style="dim", overflow="fold")
        for service in ready.services:
            runs_as = f"embedded, pid {service.pid}" if service.pid else "given by the settings"
            table.add_row(service.name, service.version, runs_as, service.where)
        news = f", {ready.migrations_applied} applied now" if ready.migrations_applied else ""
        self._console.print(table)
        self._console.print(f"home    {ready.home}", soft_wrap=True)
        self._console.print(f"schema  {ready.schema_version}{news}")
        self._console.print(
            f"[green]Ready[/green] after {ready.seconds:.2f} s; runs {self._until}."
        )

    def stopping(self) -> None:
        self._console.print("Stopping ...")

    def ended(self, summary: Summary) -> None:
        restarts = f", {len(summary.restarts)} server restarts" if summary.restarts else ""
        self._console.print(
            f"[bold]{summary.verdict}[/bold] after {summary.seconds:.2f} s{restarts}."
        )
