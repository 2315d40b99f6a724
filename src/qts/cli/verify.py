"""`qts dev verify`: goals measured on this machine, answered with PASS or FAIL."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qts.cli.console import (
    ConfigOption,
    JsonFile,
    JsonFileOption,
    JsonOption,
    MeasureOption,
    print_json,
    run_measurement,
    with_database,
)
from qts.cli.groups import command_group
from qts.domain import parse_duration

if TYPE_CHECKING:
    from qts.events import EventsConfig
    from qts.verify import DashboardLoadReport, IsolationReport, OrderLatencyReport

EventsOption = Annotated[int, typer.Option(min=100, max=1_000_000, help="Events per drain.")]

app = command_group(
    "Measure a goal and print PASS or FAIL.", "qts dev verify isolation --duration 60s"
)


class Isolation(Enum):
    thread = "thread"
    process = "process"


class P0(Enum):
    python = "python"
    compiled = "compiled"


@app.command()
def isolation(
    duration: MeasureOption = "60s",
    json_file: JsonFileOption = None,
    config: ConfigOption = None,
    plant_ms: Annotated[
        float,
        typer.Option(
            "--plant-ms", min=0, help="Self-test: a P0 handler this slow must make it FAIL."
        ),
    ] = 0.0,
    mode: Annotated[
        Isolation | None,
        typer.Option("--isolation", help="P2 and P3 in threads, or each in a process."),
    ] = None,
    p0: Annotated[
        P0, typer.Option("--p0", help="P0's handler: Python, or compiled and without the GIL.")
    ] = P0.python,
    c_call_ms: Annotated[
        float,
        typer.Option(
            "--c-call-ms", min=0, max=1000, help="P2 handlers stay in one C call this long."
        ),
    ] = 0.0,
    naive: Annotated[
        bool, typer.Option("--naive", help="Then run the same load on a queue.PriorityQueue.")
    ] = False,
) -> int:
    """Measure whether P0 keeps its latency while P2 and P3 are flooded and handlers burn CPU.

    Exit code 1 when it does not.

    Example: qts dev verify isolation --duration 60s --isolation process --c-call-ms 50 --naive
    """
    from qts import telemetry
    from qts.config import resolve
    from qts.verify import IsolationLoad, verify_isolation

    seconds = parse_duration(duration)
    output = JsonFile(json_file)
    settings = resolve(config, os.environ).config
    telemetry.configure(settings.telemetry)
    try:
        # A slow handler gets events at half of what it can handle, so that the lane does not fill.
        rate = min(200.0, 500.0 / plant_ms) if plant_ms else 200.0
        load = IsolationLoad(
            plant_p0_ms=plant_ms, p0_per_s=rate, p0=p0.value, c_call_ms=c_call_ms, naive=naive
        )
        report = verify_isolation(seconds, _isolated(settings.events, mode), load)
    finally:
        telemetry.shutdown()
    output.write(report)
    if not output.prints:
        _print_isolation(report)
    return 0 if report.verdict == "PASS" else 1


@app.command()
def latency(
    duration: MeasureOption = "30s",
    burners: Annotated[
        int, typer.Option("--burners", min=0, max=4, help="Strategies that burn CPU meanwhile.")
    ] = 0,
    isolation: Annotated[
        Isolation,
        typer.Option("--isolation", help="Strategies in their lane, or each in a process."),
    ] = Isolation.thread,
    json_file: JsonFileOption = None,
) -> int:
    """Measure tick to order and stop to exit in a sandbox with separate servers.

    Goals, in durable commits measured in the same run: tick to order p50 4, p99 10; stop to order
    p50 3.5, p99 9; beside burners stop to order p99 15, in processes 10. A stop is in lane P0
    within 50 us of its tick.

    Example: qts dev verify latency --duration 30s --burners 4 --isolation process
    """
    from qts.verify import measure_order_latency

    seconds = parse_duration(duration)
    output = JsonFile(json_file)
    isolated = isolation is Isolation.process
    report = run_measurement(
        measure_order_latency(
            seconds, burners, lambda text: typer.echo(text, err=output.prints), isolated=isolated
        )
    )
    if not output.prints:
        _print_latency(report)
    output.write(report)
    return 0 if report.verdict == "PASS" else 1


app.command("trading", hidden=True)(latency)


@app.command()
def dashboard(
    duration: MeasureOption = "80s",
    pages: Annotated[int, typer.Option("--pages", min=1, max=50, help="Open pages.")] = 10,
    json_file: JsonFileOption = None,
) -> int:
    """Measure lane P0 of a run with and without open dashboard pages, one of which never reads.

    Goals: P0's p99 with pages is less than 1.2 times that without; the dashboard's memory does
    not grow.

    Example: qts dev verify dashboard --duration 80s --pages 10
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


@app.command()
def roles(
    duration: MeasureOption = "20s",
    rate: Annotated[
        int, typer.Option("--rate", min=1, max=100_000, help="Ticks a second.")
    ] = 10_000,
    json_file: JsonFileOption = None,
) -> int:
    """Measure ticks from a feed in another process, over NATS, to on_tick of a strategy.

    Goal: on_tick p99 below 5 ms at 10,000 ticks a second, and no frame missed.

    Example: qts dev verify roles --duration 20s --rate 10000
    """
    from qts.verify import measure_role_ticks

    seconds = parse_duration(duration)
    output = JsonFile(json_file)
    report = run_measurement(
        measure_role_ticks(seconds, rate, lambda text: typer.echo(text, err=output.prints))
    )
    output.write(report)
    if not output.prints:
        for name, spans in (("received", report.received_ms), ("on_tick", report.on_tick_ms)):
            typer.echo(
                f"{name:<10}p50 {spans.p50:8.3f}  p99 {spans.p99:8.3f}  max {spans.max:8.3f} ms"
                f"  over {spans.count:,}"
            )
        stall = report.machine_stall_ms
        delay = f"p99 {stall['p99']:.2f}, max {stall['max']:.2f} ms"
        typer.echo(f"machine wake-up delay of another process: {delay}")
        typer.echo(
            f"{report.verdict}: {report.received_per_s:,.0f} ticks a second,"
            f" {report.frames_missed:,} frames missed; goal p99 {report.goal_p99_ms:g} ms"
        )
    return 0 if report.verdict == "PASS" else 1


@app.command()
def outbox(
    events: EventsOption = 20_000, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Measure publishing, draining and latency on the database of the settings.

    The handled events stay in the database.

    Example: qts dev verify outbox --events 20000
    """
    import msgspec

    from qts.verify import measure_outbox

    def progress(text: str) -> None:
        typer.echo(text + " ...", err=True)

    found = with_database(
        config, lambda database: measure_outbox(database, events, progress), schema=2
    )
    if as_json:
        print_json(found)
        return
    for name, value in msgspec.structs.asdict(found).items():
        typer.echo(
            f"{name:<24}{value:>12,.2f}" if isinstance(value, float) else f"{name:<24}{value:>12,}"
        )


@app.command()
def decisions(
    journal: Annotated[
        Path, typer.Argument(metavar="JOURNAL", help="A file from the folder pipeline.journal.")
    ],
    json_file: JsonFileOption = None,
) -> int:
    """Replay the decisions of a recorded run and compare them: exit code 0 when all are equal.

    A run writes its journal to the folder `pipeline.journal`. Strategies are loaded as they are
    now: one that changed since the run decides differently, and the differences are listed.

    Example: qts dev verify decisions journal/20261116T000000.000000.journal
    """
    from qts.pipeline import replay_decisions

    output = JsonFile(json_file)
    found = replay_decisions(journal)
    output.write(found)
    if not output.prints:
        typer.echo(
            f"{found.calls:,} calls of strategies with {found.signals:,} signals, "
            f"{found.cycles:,} cycles with {found.decisions:,} decisions, "
            f"{found.answers:,} answers of the gate"
        )
        for line in found.differences:
            typer.echo(line)
        typer.echo("all equal" if not found.different else f"{found.different:,} differ")
    return 1 if found.different else 0


def _isolated(events: EventsConfig, mode: Isolation | None) -> EventsConfig:
    """Return the settings with P2 and P3 in this mode; unchanged without one."""
    from msgspec.structs import replace

    if mode is None:
        return events
    lanes = {lane: replace(getattr(events, lane), isolation=mode.value) for lane in ("p2", "p3")}
    return replace(events, **lanes)


def _print_isolation(report: IsolationReport) -> None:
    typer.echo(f"{'lane':5}{'count':>10}{'p50':>10}{'p95':>10}{'p99':>10}{'max':>10}  ms (limit)")
    for name, lane in report.lanes.items():
        limits = ", ".join(f"{part} {limit:g}" for part, limit in lane.sla_ms.items())
        figures = "".join(
            f"{each:10.2f}" for each in (lane.p50_ms, lane.p95_ms, lane.p99_ms, lane.max_ms)
        )
        typer.echo(f"{name:5}{lane.count:10,}{figures}  {limits or 'best effort'}")
    stall = report.machine_stall_ms
    if stall:
        delay = f"p99 {stall['p99']:.2f}, max {stall['max']:.2f} ms"
        typer.echo(f"machine wake-up delay of another process: {delay}")
    if baseline := report.naive:
        spans = (baseline.p50_ms, baseline.p95_ms, baseline.p99_ms, baseline.max_ms)
        figures = "".join(f"{each:10.2f}" for each in spans)
        note = f"P0 on one queue.PriorityQueue, {baseline.sent:,} sent"
        typer.echo(f"naive{baseline.count:10,}{figures}  {note}")
    due = "".join(f"{report.p0_due_ms[part]:10.2f}" for part in ("p50", "p95", "p99", "max"))
    typer.echo(f"P0 due{report.p0_seen:8,}{due}  from when its publisher is due")
    late = report.publisher_late_ms
    typer.echo(f"P0's publisher was late by p99 {late['p99']:.2f}, max {late['max']:.2f} ms")
    typer.echo(f"P2's handlers burned {report.p2_busy:.0%} of the time")
    for line in report.warnings:
        typer.echo(f"note: {line}")
    for line in report.broken:
        typer.echo(f"broken: {line}")
    goal = ", ".join(f"{part} {limit:g}" for part, limit in report.goal_ms.items())
    typer.echo(
        f"{report.verdict}: P0 {report.p0_seen:,} of {report.p0_sent:,} in {report.seconds:g} s; "
        f"P2 and P3 by {report.isolation}, P0 {report.p0}: {goal} ms"
    )


def _print_latency(report: OrderLatencyReport) -> None:
    commit = report.commit_ms
    typer.echo(f"{'durable commit':<17}p50 {commit.p50:9.2f}  p99 {commit.p99:9.2f} ms")
    for name, spans, unit in (
        ("tick to order", report.tick_to_order_ms, "ms"),
        ("stop to order", report.stop_to_order_ms, "ms"),
        ("stop in lane P0", report.stop_in_lane_us, "us"),
    ):
        if not spans.count:
            continue
        ratios = ""
        if unit == "ms":
            p50, p99 = report.in_commits(spans.p50), report.in_commits(spans.p99)
            ratios = f" = {p50:.1f} and {p99:.1f} commits"
        typer.echo(
            f"{name:<17}p50 {spans.p50:9.2f}  p99 {spans.p99:9.2f}  max {spans.max:9.2f} {unit}"
            f"  over {spans.count:,}{ratios}"
        )
    if report.refused:
        codes = ", ".join(f"{code} {count:,}" for code, count in report.refused.items())
        typer.echo(f"refused by the gate and sent again: {codes}")
    for text in report.missed:
        typer.echo(f"missed: {text}")
    typer.echo(report.verdict)


def _print_dashboard(report: DashboardLoadReport) -> None:
    typer.echo(
        f"P0 p99, medians: {report.without_p99_ms:.2f} ms without, {report.with_p99_ms:.2f} ms with"
        f" {report.pages} pages and one that never reads: ratio {report.ratio:.2f}"
    )
    typer.echo(
        f"dashboard {report.dashboard_cpu:.1%} of a core,"
        f" memory {report.dashboard_mb:.0f} MB, {report.grown_mb:+.1f} since the first"
        f" round; the pages read {report.states_read:,} states and {report.answers_read:,} answers"
    )
    for text in report.missed:
        typer.echo(f"missed: {text}")
    typer.echo(report.verdict)
