"""`qts verify`: promises measured on this machine, answered with PASS or FAIL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from qts.cli.options import ConfigOption
from qts.cli.output import JsonFile
from qts.domain import parse_duration

if TYPE_CHECKING:
    from qts.events import IsolationReport

app = typer.Typer(
    name="verify", help="Measure a promise and answer PASS or FAIL.", no_args_is_help=True
)


@app.callback()
def _group() -> None:
    """A group, even with one command."""


@app.command()
def isolation(
    duration: Annotated[str, typer.Option("--for", help="How long to measure.")] = "60s",
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the figures here; - prints.")
    ] = None,
    config: ConfigOption = None,
    plant_ms: Annotated[
        float,
        typer.Option(
            "--plant-ms", min=0, help="A drill: a P0 handler that takes so long must make it FAIL."
        ),
    ] = 0.0,
) -> int:
    """Flood P2 and P3, burn CPU, let handlers sleep: does P0 keep its latency?

    Exit code 1 when it does not.

    Example: qts verify isolation --for 60s --json isolation.json
    """
    import os

    from qts import telemetry
    from qts.config import resolve
    from qts.events import IsolationLoad, verify_isolation

    seconds = parse_duration(duration)
    output = JsonFile(json_file)
    settings = resolve(config, os.environ).config
    telemetry.configure(settings.telemetry)
    try:
        # Planted, it comes at half the pace it can be handled at, so that the lane does not fill.
        pace = min(200.0, 500.0 / plant_ms) if plant_ms else 200.0
        load = IsolationLoad(plant_p0_ms=plant_ms, p0_per_s=pace)
        report = verify_isolation(seconds, settings.events, load)
    finally:
        telemetry.shutdown()
    output.write(report)
    if not output.prints:
        _print(report)
    return 0 if report.verdict == "PASS" else 1


def _print(report: IsolationReport) -> None:
    typer.echo(f"{'lane':5}{'count':>10}{'p50':>10}{'p95':>10}{'p99':>10}{'max':>10}  ms (limit)")
    for name, lane in report.lanes.items():
        limits = ", ".join(f"{part} {limit:g}" for part, limit in lane.sla_ms.items())
        figures = "".join(
            f"{each:10.2f}" for each in (lane.p50_ms, lane.p95_ms, lane.p99_ms, lane.max_ms)
        )
        typer.echo(f"{name:5}{lane.count:10,}{figures}  {limits or 'best effort'}")
    stall = report.machine_stall_ms
    if stall:
        late = f"p99 {stall['p99']:.2f}, max {stall['max']:.2f} ms"
        typer.echo(f"the machine itself woke another process late by {late}")
    for line in report.warnings:
        typer.echo(f"note: {line}")
    for line in report.broken:
        typer.echo(f"broken: {line}")
    typer.echo(
        f"{report.verdict}: P0 {report.p0_seen:,} of {report.p0_sent:,} in {report.seconds:g} s"
    )
