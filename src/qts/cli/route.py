"""`qts route`: one run of the router."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from qts.domain import Failed, Refused, parse_duration
from qts.machine import inspect
from qts.router import Layout, LiveLine, Scenario, Wait, load, plan, shipped, watch

Stamps = Literal["all", "hop-batch", "edges", "off"]


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
        Wait | None, typer.Option("--wait", help="What a thread does while it has no work.")
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
        raise Refused(f"--sample is {sample}; expected 1 for every message, or more")
    _check_outputs(json_file, plot)
    chosen = _chosen(scenario, duration, seed)
    placed = plan(
        chosen, inspect(), layout, workers=workers, wait=wait, oversubscribe=oversubscribe
    )
    say = _Speaker(sys.stderr if json_file == "-" else sys.stdout)
    say(placed.render())

    from qts.router import Options, Router  # the C++ core, not before it is needed

    router = Router(chosen, placed, options=Options(sample=sample, stamps=stamps))
    router.start()
    watch(router, LiveLine(say.stream))
    report = router.report
    say(report.render())
    if json_file is not None:
        _write_json(json_file, report.to_json())
    if plot is not None:
        report.save_plot(plot)
    return 0 if report.verdict == "PASSED" else 1


class _Speaker:
    """Prints for people; standard output stays clean when the JSON goes there."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __call__(self, text: str) -> None:
        print(text, file=self.stream, flush=True)


def _show_list() -> None:
    for name in shipped():
        each = load(name)
        print(
            f"{name:<22} {each.producers.count} producers, {each.offered_rate / 1e6:g} M messages a"
            f" second for {each.duration_secs:g} s, {each.cores_needed():.1f} cores of work"
        )


def _chosen(name: str | None, duration: str | None, seed: int | None) -> Scenario:
    if name is None:
        raise Refused(f"no scenario named; expected one of {', '.join(shipped())}, or a JSON file")
    changes: dict[str, Any] = {}
    if duration is not None:
        changes["duration_secs"] = parse_duration(duration)
    if seed is not None:
        changes["seed"] = seed
    return msgspec.structs.replace(load(name), **changes)


def _check_outputs(json_file: str | None, plot: Path | None) -> None:
    """A run of minutes is not lost to a typing error in the name of its report."""
    if plot is not None and plot.suffix.lower() != ".svg":
        raise Refused(
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
            raise Refused(f"{option} {file} is a directory; expected the name of a file")
        if not file.parent.is_dir():
            raise Refused(f"{option} {file}: there is no directory {file.parent}")


def _write_json(file: str, values: dict[str, Any]) -> None:
    text = json.dumps(values, indent=2) + "\n"
    if file == "-":
        sys.stdout.write(text)
        return
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failed(f"cannot write {file}: {error.strerror}") from None
