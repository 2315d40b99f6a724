"""`qts bench`: one room measured beside its peers."""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

import qts
from qts.cli.console import JsonFile
from qts.domain import RefusedError


def bench(
    room: Annotated[str, typer.Argument(metavar="ROOM", help="Which room, such as router.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Few short trials: does it run, not how fast.")
    ] = False,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write the rows; - is standard output."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="DIR", help="Draw the rows there, as SVG.")
    ] = None,
    no_goals: Annotated[
        bool, typer.Option("--no-goals", help="Exit code 0 even when a goal does not hold.")
    ] = False,
) -> int:
    """Measure a room beside its peers, in turn in one run, and hold it to its goals.

    Exit code 0: every goal holds, 1: one does not, 2: refused. Needs a checkout of QTS.

    Example: qts bench router --json rows.json --plot pictures
    """
    output = JsonFile(json_file)
    pictures = _directory(plot)
    module = _load(room)
    stream = sys.stderr if output.prints else sys.stdout
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:5.1f} s  {text}", file=stream, flush=True)

    result = module.run(quick, say)
    print(result.render(), file=stream, flush=True)
    output.write(result.to_json())
    if pictures is not None:
        for picture in result.pictures:
            (pictures / f"{picture.name}.svg").write_text(picture.svg, encoding="utf-8")
    return 0 if no_goals or result.holds else 1


def _load(room: str) -> Any:
    """The benchmark of a room: a module of `benchmarks`, which is not part of the package."""
    checkout = _checkout([Path(qts.__file__).resolve().parents[2], Path.cwd()])
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    rooms = importlib.import_module("benchmarks").ROOMS
    if room not in rooms:
        raise RefusedError(f"no benchmark of {room}; expected one of {', '.join(rooms)}")
    return importlib.import_module(f"benchmarks.{room}")


def _checkout(places: list[Path]) -> Path:
    for place in places:
        if (place / "benchmarks/__init__.py").is_file() and (place / "src/qts").is_dir():
            return place
    raise RefusedError(
        "benchmarks are not part of the installed package; run this command in a checkout of the"
        " QTS sources, where `make bench` also installs the peers"
    )


def _directory(plot: Path | None) -> Path | None:
    """Made before the run: minutes of measuring are not lost to a name that cannot be."""
    if plot is None:
        return None
    try:
        plot.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RefusedError(
            f"--plot {plot}: cannot be made a directory ({error.strerror})"
        ) from None
    if not os.access(plot, os.W_OK):
        raise RefusedError(f"--plot {plot}: cannot be written; name a directory that can")
    return plot
