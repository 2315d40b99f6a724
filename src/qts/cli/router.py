"""`qts dev router`: one run of the message router, here or as one half of two machines."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, cast

import typer

from qts.cli.console import ConfigOption, JsonFile, JsonFileOption, to_json
from qts.cli.groups import command_group
from qts.domain import OperationError, RefusedError, Secret, parse_duration
from qts.router import Layout, WaitStrategy

if TYPE_CHECKING:
    from qts.router import (
        EdgeConfig,
        JournalReplay,
        Options,
        PlacementPlan,
        Router,
        RouterReport,
        Scenario,
        Sink,
        Source,
        StreamDigest,
    )

ScenarioDurationOption = Annotated[
    str | None,
    typer.Option(
        "--duration", "--for", metavar="TIME", help="Instead of the scenario's: 500ms, 5s, 2m."
    ),
]
ScenarioArgument = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="The same on both sides: a name or a JSON file.")
]
RunOption = Annotated[str, typer.Option("--run", metavar="NAME", help="The same on both sides.")]
NatsOption = Annotated[
    str,
    typer.Option(
        "--nats",
        metavar="URL",
        envvar="QTS_NATS_URL",
        help="nats://host:4222; put one with a password into the environment.",
    ),
]
TimeoutOption = Annotated[
    str,
    typer.Option(
        "--timeout", "--patience", metavar="TIME", help="How long the other side may be silent."
    ),
]
Stamps = Literal["all", "hop-batch", "edges", "off"]
Fsync = Literal["never", "interval", "always"]

app = command_group(
    "Message router: run a scenario, on one or two machines.",
    "qts dev router run baseline --duration 5s",
)


@app.command()
def run(
    scenario: Annotated[
        str | None,
        typer.Argument(metavar="SCENARIO", help="A name from --list, or the path of a JSON file."),
    ] = None,
    duration: ScenarioDurationOption = None,
    layout: Annotated[
        Layout,
        typer.Option("--layout", help="A thread for each component, or several on a worker."),
    ] = "auto",
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", help="Workers of the fused layout.")
    ] = None,
    sample: Annotated[
        int, typer.Option("--sample", metavar="N", help="Measure every Nth message; 1 is all.")
    ] = 1000,
    stamps: Annotated[
        Stamps, typer.Option("--stamps", help="Where time stamps are taken.")
    ] = "all",
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Instead of the scenario's seed.")
    ] = None,
    json_file: JsonFileOption = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw the latencies.")
    ] = None,
    oversubscribe: Annotated[
        bool, typer.Option("--oversubscribe", help="Allow more spinning threads than CPUs.")
    ] = False,
    wait: Annotated[
        WaitStrategy | None, typer.Option("--wait", help="What a thread does while it has no work.")
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option("--journal", metavar="FILE", help="Write what passes Stage 1 to this file."),
    ] = None,
    fsync: Annotated[
        Fsync, typer.Option("--fsync", help="When the journal is forced to disk.")
    ] = "interval",
    replay: Annotated[
        Path | None,
        typer.Option("--replay", metavar="FILE", help="Send the messages of a journal instead."),
    ] = None,
    expect: Annotated[
        Path | None,
        typer.Option(
            "--expect", metavar="REPORT", help="Fail unless every stream is as in this report."
        ),
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the built-in scenarios.")] = False,
    config: ConfigOption = None,
) -> int:
    """Send a scenario's messages through the router and report the result of every message.

    Exit code 0: PASSED, 1: FAILED, 2: refused.

    Example: qts dev router run baseline --duration 5s --json report.json
    """
    if show_list:
        _print_scenarios()
        return 0
    if sample < 1:
        raise RefusedError(f"--sample is {sample}; expected 1 for every message, or more")
    _check_outputs(json_file, plot)
    if replay is not None:
        _check_replay(journal, duration, seed)

    from qts.machine import detect_topology
    from qts.router import JournalConfig, Options, plan_placement, read_stream_digests

    expected = None if expect is None else read_stream_digests(expect)
    selected = _select(scenario, duration, seed)
    plan = plan_placement(
        selected,
        detect_topology(),
        layout,
        workers=workers,
        wait=wait,
        oversubscribe=oversubscribe,
        lean=stamps != "all",
    )
    options = Options(
        sample=sample,
        stamps=stamps,
        digest=not (journal is replay is expect is None),
        journal=None if journal is None else JournalConfig(journal, fsync),
        keep_numbers=replay is not None,
    )
    writer = ConsoleWriter(sys.stderr if json_file == "-" else sys.stdout)
    report = _compare(_run(_router(selected, plan, options, replay), plan, writer), expected)
    writer.print(report.render())
    _save_for_dashboard(config, report, writer)
    _write(report, json_file, plot)
    return 0 if report.verdict == "PASSED" else 1


@app.command()
def source(
    scenario: ScenarioArgument,
    run: RunOption,
    nats: NatsOption,
    duration: ScenarioDurationOption = None,
    timeout: TimeoutOption = "10s",
    json_file: JsonFileOption = None,
) -> int:
    """Run producers, Stage 1 and processors; PASSED once the sink has confirmed everything.

    Example: qts dev router source baseline --run monday --duration 5s
    """
    output, edge = JsonFile(json_file), _edge(nats, run, timeout)
    selected = _select(scenario, duration, None)

    from qts.router import Source

    return _run_half(Source(selected, edge), output)


@app.command()
def sink(
    scenario: ScenarioArgument,
    run: RunOption,
    nats: NatsOption,
    timeout: TimeoutOption = "10s",
    json_file: JsonFileOption = None,
) -> int:
    """Run Stage 2 and strategies; resumes where an earlier sink of the same run ended.

    Example: qts dev router sink baseline --run monday
    """
    output, edge = JsonFile(json_file), _edge(nats, run, timeout)
    selected = _select(scenario, None, None)

    from qts.router import Sink

    return _run_half(Sink(selected, edge), output)


def _edge(nats: str, run: str, timeout: str) -> EdgeConfig:
    from qts.router import EdgeConfig

    return EdgeConfig(url=Secret(nats), run=run, timeout_s=parse_duration(timeout))


def _run_half(half: Source | Sink, output: JsonFile) -> int:
    from qts.router import ProgressLine, watch_run

    stream = sys.stderr if output.prints else sys.stdout
    print(half.router.plan.render(), file=stream, flush=True)
    half.start()
    watch_run(half, ProgressLine(stream))
    report = half.report
    print(report.render(), file=stream, flush=True)
    output.write(report.to_json())
    return 0 if report.verdict == "PASSED" else 1


class ConsoleWriter:
    """Text output that does not end the run when its reader, such as `head`, exits."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._closed = False

    def print(self, text: str) -> None:
        self.write(text + "\n")
        self.flush()

    def write(self, text: str) -> None:
        self._unless_closed(lambda: self._stream.write(text))

    def flush(self) -> None:
        self._unless_closed(self._stream.flush)

    def isatty(self) -> bool:
        return self._stream.isatty()

    def _unless_closed(self, act: Callable[[], object]) -> None:
        if self._closed:
            return
        try:
            act()
        except BrokenPipeError:
            self._closed = True
            _discard_buffer(self._stream)


def _discard_buffer(stream: TextIO) -> None:
    """Point a stream at /dev/null, so that its buffer does not fail again at interpreter exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def _router(
    scenario: Scenario, plan: PlacementPlan, options: Options, replay: Path | None
) -> Router | JournalReplay:
    from qts.router import JournalReplay, Router

    router = Router(scenario, plan, options=options, live=replay is not None)
    return router if replay is None else JournalReplay(router, replay)


def _run(
    router: Router | JournalReplay, plan: PlacementPlan, writer: ConsoleWriter
) -> RouterReport:
    from qts.router import ProgressLine, watch_run

    writer.print(plan.render())
    router.start()
    watch_run(router, ProgressLine(cast(TextIO, writer)))
    return router.report


def _compare(report: RouterReport, expected: tuple[StreamDigest, ...] | None) -> RouterReport:
    """Return the report with every difference from the expected streams as a failure."""
    from msgspec.structs import replace

    from qts.router import compare_digests

    if expected is None:
        return report
    wrong = tuple(f"not as expected: {line}" for line in compare_digests(expected, report.streams))
    same = f"all {len(report.streams):,} streams are as expected"
    return replace(
        report,
        failures=report.failures + wrong,
        notes=report.notes if wrong else (*report.notes, same),
    )


def _save_for_dashboard(config: Path | None, report: RouterReport, writer: ConsoleWriter) -> None:
    """Save the report for the dashboard where a home exists; a failure is only printed."""
    import time

    from qts.config import load
    from qts.embedded import default_home
    from qts.router import save_last_report

    try:
        home = load(config, os.environ).home or default_home(os.environ)
        save_last_report(home, report.to_json(), time.time())
    except (OSError, RefusedError) as error:
        writer.print(f"not saved for the dashboard: {error}")


def _check_replay(journal: Path | None, duration: str | None, seed: int | None) -> None:
    for option, value in (("--journal", journal), ("--duration", duration), ("--seed", seed)):
        if value is not None:
            raise RefusedError(f"{option} has no meaning with --replay; expected one of the two")


def _print_scenarios() -> None:
    from qts.router import builtin_scenarios, load_scenario

    for name in builtin_scenarios():
        each = load_scenario(name)
        print(
            f"{name:<22} {each.producers.count} producers, {each.offered_rate / 1e6:g} M messages a"
            f" second for {each.duration_secs:g} s, {each.cores_needed():.1f} cores of work"
        )


def _select(name: str | None, duration: str | None, seed: int | None) -> Scenario:
    from msgspec.structs import replace

    from qts.router import builtin_scenarios, load_scenario

    if name is None:
        raise RefusedError(
            f"no scenario named; expected one of {', '.join(builtin_scenarios())}, or a JSON file"
        )
    changes: dict[str, Any] = {}
    if duration is not None:
        changes["duration_secs"] = parse_duration(duration)
    if seed is not None:
        changes["seed"] = seed
    return replace(load_scenario(name), **changes)


def _check_outputs(json_file: str | None, plot: Path | None) -> None:
    """Refuse output files that could not be written, before the run."""
    if plot is not None and plot.suffix.lower() != ".svg":
        raise RefusedError(
            f"--plot writes an SVG picture; expected a name that ends in .svg, not {plot}"
        )
    files = [
        ("--plot", plot),
        ("--json", Path(json_file) if json_file not in (None, "-") else None),
    ]
    for option, file in files:
        if file is None:
            continue
        if file.is_dir():
            raise RefusedError(f"{option} {file} is a directory; expected the name of a file")
        if not file.parent.is_dir():
            raise RefusedError(f"{option} {file}: there is no directory {file.parent}")


def _write(report: RouterReport, json_file: str | None, plot: Path | None) -> None:
    if plot is not None:
        report.save_plot(plot)
    if json_file is None:
        return
    text = to_json(report.to_json()) + "\n"
    if json_file == "-":
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            _discard_buffer(sys.stdout)
            raise OperationError("cannot write the report: standard output is closed") from None
        return
    try:
        Path(json_file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise OperationError(f"cannot write {json_file}: {error.strerror}") from None
