"""`qts dev bench`: one package measured beside its peers."""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

import qts
from qts.cli.console import JsonFile, JsonFileOption
from qts.domain import RefusedError


def bench(
    package: Annotated[str, typer.Argument(metavar="PACKAGE", help="The package, such as router.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Few short trials, to see that it runs.")
    ] = False,
    json_file: JsonFileOption = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="DIR", help="Draw the rows as SVG files.")
    ] = None,
    no_goals: Annotated[
        bool, typer.Option("--no-goals", help="Exit code 0 even when a goal is missed.")
    ] = False,
) -> int:
    """Measure a package beside its peers.

    Runs them in turn and compares the package with its goals. Exit code 0: every goal holds,
    1: one does not, 2: refused. Needs a checkout of QTS.

    Example: qts dev bench router --json rows.json --plot pictures
    """
    output = JsonFile(json_file)
    pictures = _directory(plot)
    module = _load(package)
    stream = sys.stderr if output.prints else sys.stdout
    started = time.monotonic()

    def progress(text: str) -> None:
        print(f"{time.monotonic() - started:5.1f} s  {text}", file=stream, flush=True)

    result = module.run(quick, progress)
    print(result.render(), file=stream, flush=True)
    output.write(result.to_json())
    if pictures is not None:
        for picture in result.pictures:
            (pictures / f"{picture.name}.svg").write_text(picture.svg, encoding="utf-8")
    return 0 if no_goals or result.holds else 1


def _load(package: str) -> Any:
    """Return the benchmark module of a package; `benchmarks` is in a checkout only."""
    checkout = _checkout([Path(qts.__file__).resolve().parents[2], Path.cwd()])
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    known = importlib.import_module("benchmarks").PACKAGES
    if package not in known:
        raise RefusedError(f"no benchmark of {package}; expected one of {', '.join(known)}")
    return importlib.import_module(f"benchmarks.{package}")


def _checkout(places: list[Path]) -> Path:
    for place in places:
        if (place / "benchmarks/__init__.py").is_file() and (place / "src/qts").is_dir():
            return place
    raise RefusedError(
        "benchmarks are not part of the installed package; run this command in a checkout of the"
        " QTS sources, where `make bench` also installs the peers"
    )


def _directory(plot: Path | None) -> Path | None:
    """Create the directory before the run, so that a bad name does not cost a measurement."""
    if plot is None:
        return None
    try:
        plot.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RefusedError(
            f"--plot {plot}: cannot create the directory ({error.strerror})"
        ) from None
    if not os.access(plot, os.W_OK):
        raise RefusedError(f"--plot {plot}: cannot be written; name a writable directory")
    return plot
