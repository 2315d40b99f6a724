"""`qts verify`: promises measured on this machine, answered with PASS or FAIL.

`qts retrace`: the decisions of a recorded run, made again and compared.

`qts verify dashboard`: what open pages cost what trades.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from qts.cli.console import ConfigOption, JsonFile, run_measurement
from qts.domain import parse_duration

if TYPE_CHECKING:
    from qts.events import EventsConfig
    from qts.verify import DashboardLoadReport, IsolationReport


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
    report = run_measurement(
        measure_dashboard_load(seconds, pages, lambda text: typer.echo(text, err=output.prints))
    )
    output.write(report)
    if not output.prints:
        _print_dashboard(report)
    return 0 if report.verdict == "PASS" else 1


def _print_dashboard(report: DashboardLoadReport) -> None:
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


app = typer.Typer(
    name="verify", help="Measure a promise and answer PASS or FAIL.", no_args_is_help=True
)


class Isolation(Enum):
    thread = "thread"
    process = "process"


class P0(Enum):
    python = "python"
    compiled = "compiled"


@app.callback()
def _group() -> None:
    """A group, even with one command."""


app.command()(dashboard)


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
    mode: Annotated[
        Isolation | None,
        typer.Option("--isolation", help="P2 and P3 in threads here or in processes of their own."),
    ] = None,
    p0: Annotated[
        P0, typer.Option("--p0", help="P0's handler: Python, or compiled and without the GIL.")
    ] = P0.python,
    c_call_ms: Annotated[
        float,
        typer.Option(
            "--c-call-ms", min=0, max=1000, help="P2 handlers sit in one C call of this length."
        ),
    ] = 0.0,
    naive: Annotated[
        bool, typer.Option("--naive", help="Then the same load on a queue.PriorityQueue, beside.")
    ] = False,
) -> int:
    """Flood P2 and P3, burn CPU, let handlers sleep: does P0 keep its latency?

    Exit code 1 when it does not.

    Example: qts verify isolation --for 60s --isolation process --c-call-ms 50 --naive
    """
    import os

    from qts import telemetry
    from qts.config import resolve
    from qts.verify import IsolationLoad, verify_isolation

    seconds = parse_duration(duration)
    output = JsonFile(json_file)
    settings = resolve(config, os.environ).config
    telemetry.configure(settings.telemetry)
    try:
        # Planted, it comes at half the pace it can be handled at, so that the lane does not fill.
        pace = min(200.0, 500.0 / plant_ms) if plant_ms else 200.0
        load = IsolationLoad(
            plant_p0_ms=plant_ms, p0_per_s=pace, p0=p0.value, c_call_ms=c_call_ms, naive=naive
        )
        report = verify_isolation(seconds, _isolated(settings.events, mode), load)
    finally:
        telemetry.shutdown()
    output.write(report)
    if not output.prints:
        _print(report)
    return 0 if report.verdict == "PASS" else 1


def _isolated(events: EventsConfig, mode: Isolation | None) -> EventsConfig:
    """P2 and P3 as asked for; as the settings say when nothing was."""
    if mode is None:
        return events
    change = {
        lane: msgspec.structs.replace(getattr(events, lane), isolation=mode.value)
        for lane in ("p2", "p3")
    }
    return msgspec.structs.replace(events, **change)


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
    if naive := report.naive:
        figures = "".join(
            f"{each:10.2f}" for each in (naive.p50_ms, naive.p95_ms, naive.p99_ms, naive.max_ms)
        )
        note = f"P0 on one queue.PriorityQueue, {naive.sent:,} sent"
        typer.echo(f"naive{naive.count:10,}{figures}  {note}")
    came = report.publisher_late_ms
    typer.echo(f"P0's publisher itself was late by p99 {came['p99']:.2f}, max {came['max']:.2f} ms")
    for line in report.warnings:
        typer.echo(f"note: {line}")
    for line in report.broken:
        typer.echo(f"broken: {line}")
    goal = ", ".join(f"{part} {limit:g}" for part, limit in report.goal_ms.items())
    typer.echo(
        f"{report.verdict}: P0 {report.p0_seen:,} of {report.p0_sent:,} in {report.seconds:g} s; "
        f"P2 and P3 by {report.isolation}, P0 {report.p0}: {goal} ms"
    )


@app.command()
def trading(
    duration: Annotated[str, typer.Option("--for", help="How long to measure.")] = "30s",
    burners: Annotated[
        int, typer.Option("--burners", min=0, max=4, help="Strategies that burn CPU meanwhile.")
    ] = 0,
    isolation: Annotated[
        Isolation,
        typer.Option("--isolation", help="Strategies in their lane, or each in its own process."),
    ] = Isolation.thread,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the figures here; - prints.")
    ] = None,
) -> int:
    """Measure the way from a tick to an order, and from a stop to its exit, on servers of its own.

    Goals: tick to order p50 10 ms, p99 50 ms; a stop is in lane P0 within 50 us of its tick, and
    its order leaves within 20 ms, p99.

    Example: qts verify trading --for 30s --burners 4 --isolation process
    """
    from qts.verify import measure_order_latency

    seconds = parse_duration(duration)
    output = JsonFile(json_file)
    apart = isolation is Isolation.process
    report = run_measurement(
        measure_order_latency(
            seconds, burners, lambda text: typer.echo(text, err=output.prints), apart=apart
        )
    )
    if not output.prints:
        for name, spans, unit in (
            ("tick to order", report.entry_ms, "ms"),
            ("stop in lane P0", report.lane_us, "us"),
            ("stop to order", report.exit_ms, "ms"),
        ):
            if not spans.count:
                continue
            typer.echo(
                f"{name:<17}p50 {spans.p50:9.2f}  p99 {spans.p99:9.2f}  max {spans.max:9.2f} {unit}"
                f"  over {spans.count:,}"
            )
        if report.refused:
            codes = ", ".join(f"{code} {count:,}" for code, count in report.refused.items())
            typer.echo(f"refused by the gate and given again: {codes}")
        for text in report.missed:
            typer.echo(f"not held: {text}")
        typer.echo(report.verdict)
    output.write(report)
    return 0 if report.verdict == "PASS" else 1
