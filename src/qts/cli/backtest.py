"""`qts backtest`: a strategy over recorded or simulated data, here or as a job."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from qts.cli.console import ConfigOption, JsonFile, JsonFileOption
from qts.domain import RefusedError

if TYPE_CHECKING:
    from qts.backtest import BacktestConfig, BacktestResult, Tape
    from qts.strategies import Strategy

Way = Literal["auto", "compiled", "generic"]

StrategyArgument = Annotated[
    str, typer.Argument(metavar="STRATEGY", help="rsi_scalper, module:Class or path.py:Class.")
]
DataArgument = Annotated[
    Path | None,
    typer.Argument(metavar="DATA", help="A folder of records, or .jsonl[.zst], .csv, .parquet."),
]
ParamOption = Annotated[
    list[str] | None,
    typer.Option("--param", metavar="NAME=VALUE", help="A parameter of the strategy; repeatable."),
]
SeedOption = Annotated[
    int | None,
    typer.Option("--simulated-day", metavar="SEED", min=0, help="A simulated day instead of DATA."),
]
VolumeOption = Annotated[
    Literal["auto", "day", "tick"],
    typer.Option(help="Whether DATA has the day's cumulative volume or that of each tick."),
]
CashOption = Annotated[
    str | None, typer.Option(metavar="WON", help="Initial cash; default brokers.paper.cash.")
]
SymbolsOption = Annotated[int, typer.Option(min=1, max=4000, help="Symbols of the simulated day.")]
SecondsOption = Annotated[int, typer.Option(min=1, max=23_400, help="Length of the simulated day.")]
LatencyOption = Annotated[
    float | None,
    typer.Option(
        min=0, max=60_000, metavar="MS", help="Before an order can trade; 0: on its own tick."
    ),
]
HtmlOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with plots.")]


def backtest(
    strategy: StrategyArgument,
    data: DataArgument = None,
    param: ParamOption = None,
    cash: CashOption = None,
    seed: SeedOption = None,
    symbols: SymbolsOption = 2500,
    seconds: SecondsOption = 23_400,
    volume: VolumeOption = "auto",
    stops: Annotated[
        bool, typer.Option("--stops/--no-stops", help="Whether stops close positions.")
    ] = True,
    latency: LatencyOption = None,
    way: Annotated[
        Way,
        typer.Option(help="How the engine runs; the result is the same."),
    ] = "auto",
    json_file: JsonFileOption = None,
    html: HtmlOption = None,
    job: Annotated[bool, typer.Option("--job", help="Submit a job for qts ops jobs work.")] = False,
    config: ConfigOption = None,
) -> int:
    """Run a strategy over recorded or simulated data.

    Uses the same steps, gate, stops and matching as the paper broker. Exit code 0: it ran to the
    end, 1: the strategy was disabled on the way, 2: refused.

    Example: qts backtest rsi_scalper record/ --param length=20 --html report.html
    """
    from qts.backtest import select_tape
    from qts.strategies import load_strategy

    output, page = JsonFile(json_file), _writable(html)
    loaded = load_strategy(strategy).from_params(_params(param or []))
    settings = _settings(config, cash, stops, latency)
    tape = select_tape(data, seed, symbols, seconds, volume)
    if job:
        options: dict[str, object] = {
            "--cash": cash,
            "--simulated-day": seed,
            "--symbols": symbols,
            "--seconds": seconds,
            "--volume": volume,
            "--way": way,
            "--latency": latency,
            "--html": _absolute(html),
            "--config": _absolute(config),
        }
        return _submit(config, _job_arguments(strategy, data, param or [], options, stops))
    result = _run(loaded, tape, settings, way)
    _print(result, on_stderr=output.prints)
    _write(result, output, page)
    return 1 if result.stopped else 0


def _run(strategy: Strategy[Any], tape: Tape, settings: BacktestConfig, way: Way) -> BacktestResult:
    from qts import telemetry
    from qts.backtest import run_backtest

    telemetry.configure(telemetry.TelemetryConfig(log_level="error"))
    with _progress(tape) as progress:
        return run_backtest(strategy, tape, settings, way=way, progress=progress)


def _params(lines: list[str]) -> dict[str, str]:
    found = {}
    for line in lines:
        name, sign, value = line.partition("=")
        if not sign or not name:
            raise RefusedError(f"--param {line!r}: expected NAME=VALUE, such as length=20")
        found[name.strip()] = value.strip()
    return found


def _settings(
    config: Path | None, cash: str | None, stops: bool, latency: float | None
) -> BacktestConfig:
    """Return limits, stops, costs and the paper broker's behaviour as the settings have them."""
    from msgspec.structs import replace

    from qts.backtest import BacktestConfig
    from qts.config import load

    settings = load(config, os.environ)
    paper = settings.brokers.paper
    usual_ms = max(BacktestConfig().paper.latency_ms, paper.latency_ms)
    try:
        initial = Decimal(cash.replace(",", "").replace("_", "")) if cash else Decimal(paper.cash)
    except InvalidOperation:
        raise RefusedError(f"--cash {cash!r} is not a number of won") from None
    return BacktestConfig(
        cash=initial,
        limits=settings.risk.limits,
        stops=settings.risk.stops,
        use_stops=stops,
        paper=replace(paper, latency_ms=usual_ms if latency is None else latency),
        costs=settings.brokers.costs,
        interval_s=settings.pipeline.interval_ms / 1000,
        signal_ttl_s=settings.pipeline.signal_ttl_s,
        fill_timeout_s=settings.pipeline.fill_timeout_s,
    )


def _writable(path: Path | None) -> Path | None:
    if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        raise RefusedError(f"--html {path}: cannot be written; name a file in a writable directory")
    return path


@contextmanager
def _progress(tape: Tape) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal, and nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _events: None
        return
    columns = ("events", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("events", total=tape.events)
        yield lambda events: bar.update(task, completed=events)


def _print(result: BacktestResult, *, on_stderr: bool) -> None:
    from rich.console import Console

    from qts.backtest import render_table

    console = Console(stderr=on_stderr, highlight=False)
    if not console.is_terminal:
        console.width = 200
    console.print(render_table(result))


def _write(result: BacktestResult, output: JsonFile, page: Path | None) -> None:
    from qts.backtest import render_html, to_json

    output.write(to_json(result))
    if page is not None:
        page.write_text(render_html(result), encoding="utf-8")


def _absolute(path: Path | None) -> Path | None:
    return path.resolve() if path else None


def _job_arguments(
    strategy: str, data: Path | None, params: list[str], options: dict[str, object], stops: bool
) -> tuple[str, ...]:
    """Return the command line with absolute paths, for a worker in another directory."""
    where, colon, kind = strategy.rpartition(":")
    name = f"{Path(where).resolve()}:{kind}" if colon and where.endswith(".py") else strategy
    arguments = [name, *([str(data.resolve())] if data else [])]
    for line in params:
        arguments += ["--param", line]
    for option, value in options.items():
        if value is not None:
            arguments += [option, str(value)]
    return (*arguments, "--stops" if stops else "--no-stops")


def _submit(config: Path | None, arguments: tuple[str, ...]) -> int:
    from qts.cli.jobs import submit

    typer.echo(submit(config, arguments))
    return 0
