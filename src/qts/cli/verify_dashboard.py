"""`qts verify dashboard`: what open pages cost what trades."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from qts.cli.errand import measured
from qts.cli.output import JsonFile
from qts.domain import parse_duration

if TYPE_CHECKING:
    from qts.verify import DashboardLoadReport


def dashboard(
    duration: Annotated[str, typer.Option("--for", help="How long to measure.")] = "80s",
    pages: Annotated[int, typer.Option("--pages", min=1, max=50, help="Pages that are open.")] = 10,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the figures here; - prints.")
    ] = None,
) -> int:
    """Measure lane P0 of a run with and without open pages, one of which never reads.

    Goals: P0's p99 with pages is less than 1.2 times that without; the dashboard's memory stays.

    Example: qts verify dashboard --for 80s --pages 10
    """
    from qts.verify import measure_dashboard_load

    seconds = parse_duration(duration)
    output = JsonFile(json_file)
    report = measured(
        measure_dashboard_load(seconds, pages, lambda text: typer.echo(text, err=output.prints))
    )
    output.write(report)
    if not output.prints:
        _print(report)
    return 0 if report.verdict == "PASS" else 1


def _print(report: DashboardLoadReport) -> None:
    typer.echo(
        f"P0 p99, medians: {report.without_p99_ms:.2f} ms without, {report.with_p99_ms:.2f} ms with"
        f" {report.pages} pages and one that never reads: ratio {report.ratio:.2f}"
    )
    typer.echo(
        f"the dashboard has {report.dashboard_mb:.0f} MB, {report.grown_mb:+.1f} since the first"
        f" turn; the pages read {report.states_read:,} states and {report.answers_read:,} answers"
    )
    for text in report.missed:
        typer.echo(f"not held: {text}")
    typer.echo(report.verdict)
