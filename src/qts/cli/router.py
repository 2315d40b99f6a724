"""`qts route`: one run of the router."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, cast

import msgspec
import typer

from qts.domain import OperationError, RefusedError, parse_duration
from qts.machine import detect_topology
from qts.router import (
    Layout,
    PlacementPlan,
    ProgressLine,
    RouterReport,
    Scenario,
    StreamDigest,
    WaitStrategy,
    builtin_scenarios,
    compare_digests,
    load_scenario,
    plan_placement,
    read_stream_digests,
    watch_run,
)

if TYPE_CHECKING:
    from qts.router import JournalReplay, Options, Router

Stamps = Literal["all", "hop-batch", "edges", "off"]
Fsync = Literal["never", "interval", "always"]


def route(
    scenario: Annotated[
        str | None,
        typer.Argument(metavar="SCENARIO", help="A name from --list, or the path of a JSON file."),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            "--duration", metavar="SPAN", help="Instead of the scenario's: 500ms, 5s, 2m."
        ),
    ] = None,
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
        int | None, typer.Option("--seed", metavar="N", help="Instead of the scenario's.")
    ] = None,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write the report; - is standard output."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw the latencies.")
    ] = None,
    oversubscribe: Annotated[
        bool, typer.Option("--oversubscribe", help="Spin more threads than there are CPUs.")
    ] = False,
    wait: Annotated[
        WaitStrategy | None, typer.Option("--wait", help="What a thread does while it has no work.")
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option("--journal", metavar="FILE", help="Keep what passes Stage 1 on disk."),
    ] = None,
    fsync: Annotated[
        Fsync, typer.Option("--fsync", help="When the journal is forced onto the disk.")
    ] = "interval",
    replay: Annotated[
        Path | None,
        typer.Option("--replay", metavar="FILE", help="Send what a journal holds, nothing else."),
    ] = None,
    expect: Annotated[
        Path | None,
        typer.Option(
            "--expect", metavar="REPORT", help="Fail unless every stream is as in this report."
        ),
    ] = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="List the scenarios that come with QTS.")
    ] = False,
) -> int:
    """Send a scenario's messages through the router and report what became of every one.

    Exit code 0: PASSED, 1: FAILED, 2: refused.

    Example: qts route baseline --duration 5s --json report.json
    """
    if show_list:
        _show_list()
        return 0
    if sample < 1:
        raise RefusedError(f"--sample is {sample}; expected 1 for every message, or more")
    _check_outputs(json_file, plot)
    if replay is not None:
        _check_replay(journal, duration, seed)
    expected = None if expect is None else read_stream_digests(expect)
    chosen = _chosen(scenario, duration, seed)
    placed = plan_placement(
        chosen,
        detect_topology(),
        layout,
        workers=workers,
        wait=wait,
        oversubscribe=oversubscribe,
        lean=stamps != "all",
    )
    from qts.router import JournalConfig, Options  # the C++ core, not before it is needed

    options = Options(
        sample=sample,
        stamps=stamps,
        digest=not (journal is replay is expect is None),
        journal=None if journal is None else JournalConfig(journal, fsync),
        keep_numbers=replay is not None,
    )
    run = _run(chosen, placed, options, replay)
    listener = ConsoleWriter(sys.stderr if json_file == "-" else sys.stdout)
    listener.say(placed.render())
    run.start()
    watch_run(run, ProgressLine(cast(TextIO, listener)))
    report = _compared(run.report, expected)
    listener.say(report.render())
    _keep(report, listener)
    if json_file is not None:
        _write_json(json_file, report.to_json())
    if plot is not None:
        report.save_plot(plot)
    return 0 if report.verdict == "PASSED" else 1


def _keep(report: RouterReport, listener: ConsoleWriter) -> None:
    """For the dashboard's page, in a home that is there; a run is never lost to it."""
    import time

    from qts.config import load
    from qts.embedded import default_home
    from qts.router import save_last_report

    try:
        home = load(None, os.environ).home or default_home(os.environ)
        save_last_report(home, report.to_json(), time.time())
    except (OSError, RefusedError) as error:
        listener.say(f"not kept for the dashboard: {error}")


class ConsoleWriter:
    """Writes for people. One that goes away, as `head` does, does not end the run."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._gone = False

    def say(self, text: str) -> None:
        self.write(text + "\n")
        self.flush()

    def write(self, text: str) -> None:
        self._unless_gone(lambda: self._stream.write(text))

    def flush(self) -> None:
        self._unless_gone(self._stream.flush)

    def isatty(self) -> bool:
        return self._stream.isatty()

    def _unless_gone(self, act: Callable[[], object]) -> None:
        if self._gone:
            return
        try:
            act()
        except BrokenPipeError:
            self._gone = True
            _silence(self._stream)


def _silence(stream: TextIO) -> None:
    """What is left in its buffer must not fail again when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _run(
    scenario: Scenario, placed: PlacementPlan, options: Options, replay: Path | None
) -> Router | JournalReplay:
    from qts.router import JournalReplay, Router

    router = Router(scenario, placed, options=options, live=replay is not None)
    return router if replay is None else JournalReplay(router, replay)


def _compared(report: RouterReport, expected: tuple[StreamDigest, ...] | None) -> RouterReport:
    if expected is None:
        return report
    wrong = tuple(f"not as expected: {line}" for line in compare_digests(expected, report.streams))
    same = f"all {len(report.streams):,} streams are as expected"
    return msgspec.structs.replace(
        report,
        failures=report.failures + wrong,
        notes=report.notes if wrong else (*report.notes, same),
    )


def _check_replay(journal: Path | None, duration: str | None, seed: int | None) -> None:
    for option, value in (("--journal", journal), ("--duration", duration), ("--seed", seed)):
        if value is not None:
            raise RefusedError(f"{option} has no meaning with --replay; expected one of the two")


def _show_list() -> None:
    for name in builtin_scenarios():
        each = load_scenario(name)
        print(
            f"{name:<22} {each.producers.count} producers, {each.offered_rate / 1e6:g} M messages a"
            f" second for {each.duration_secs:g} s, {each.cores_needed():.1f} cores of work"
        )


def _chosen(name: str | None, duration: str | None, seed: int | None) -> Scenario:
    if name is None:
        raise RefusedError(
            f"no scenario named; expected one of {', '.join(builtin_scenarios())}, or a JSON file"
        )
    changes: dict[str, Any] = {}
    if duration is not None:
        changes["duration_secs"] = parse_duration(duration)
    if seed is not None:
        changes["seed"] = seed
    return msgspec.structs.replace(load_scenario(name), **changes)


def _check_outputs(json_file: str | None, plot: Path | None) -> None:
    """A run of minutes is not lost to a typing error in the name of its report."""
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


def _write_json(file: str, values: dict[str, Any]) -> None:
    text = json.dumps(values, indent=2) + "\n"
    if file == "-":
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            _silence(sys.stdout)
            raise OperationError("cannot write the report: nobody reads standard output") from None
        return
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise OperationError(f"cannot write {file}: {error.strerror}") from None
