"""`qts backtest`: strategies over ticks or bars, here or as a job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from qts.cli.backtest_options import (
    AlsoOption,
    BacktestOptions,
    BarsOption,
    CallLimitOption,
    CashOption,
    DataArgument,
    FromOption,
    HtmlOption,
    InstrumentsOption,
    LatencyOption,
    ParamOption,
    SecondsOption,
    SeedOption,
    StopsOption,
    StrategyArgument,
    SymbolsOption,
    ToOption,
    VenueOption,
    VolumeOption,
    Way,
)
from qts.cli.console import (
    ConfigOption,
    JsonFile,
    JsonFileOption,
    html_file,
    print_tables,
    show_progress,
)
from qts.cli.file_layout import (
    ColumnsOption,
    FileOptions,
    FileSymbolOption,
    MapOption,
    TimeframeOption,
    ZoneOption,
)

if TYPE_CHECKING:
    from qts.backtest import BacktestResult, BarTape, DataSelection, Tape


def backtest(
    strategy: StrategyArgument,
    data: DataArgument = None,
    also: AlsoOption = None,
    param: ParamOption = None,
    bars: BarsOption = None,
    symbols: SymbolsOption = None,
    start: FromOption = None,
    end: ToOption = None,
    cash: CashOption = None,
    seed: SeedOption = None,
    seconds: SecondsOption = 23_400,
    volume: VolumeOption = "auto",
    mapping: MapOption = None,
    columns: ColumnsOption = None,
    symbol: FileSymbolOption = None,
    timeframe: TimeframeOption = None,
    tz: ZoneOption = None,
    stops: StopsOption = True,
    latency: LatencyOption = None,
    call_limit: CallLimitOption = 10.0,
    instruments: InstrumentsOption = None,
    venue: VenueOption = "auto",
    way: Annotated[
        Way,
        typer.Option(help="How the engine runs; the result is the same."),
    ] = "auto",
    json_file: JsonFileOption = None,
    html: HtmlOption = None,
    job: Annotated[bool, typer.Option("--job", help="Submit a job; a run takes it.")] = False,
    config: ConfigOption = None,
) -> int:
    """Run strategies over recorded or simulated ticks, or over bars.

    Uses the same steps, gate, stops and matching as the paper broker. Over bars, what is decided
    on a close trades at the next open. Exit code 0: it ran to the end, 1: a strategy was disabled
    on the way or did not return, 2: refused.

    Example: qts backtest rsi_scalper record/ --param length=20 --html report.html
    Example: qts backtest mine.py:Mine --bars 1d --symbols 005930,000660 --from 2024-01-01
    """
    from qts.config import resolve

    output, page = JsonFile(json_file), html_file(html)
    options = BacktestOptions(
        strategies=(strategy, *(also or ())),
        params=tuple(param or ()),
        data=data,
        bars=bars,
        symbols=symbols,
        start=start,
        end=end,
        seed=seed,
        seconds=seconds,
        volume=volume,
        file=FileOptions(mapping, columns, symbol, timeframe, tz),
        cash=cash,
        stops=stops,
        latency=latency,
        call_limit=call_limit,
        instruments=instruments,
        venue=venue,
        way=way,
        config=resolve(config, os.environ).file,
    )
    chosen = options.select_data()
    if job:
        return _submit(options, chosen, html)
    result, tape = _run(options, chosen)
    _print(result, on_stderr=output.prints)
    _write(result, tape, output, page)
    return 1 if result.stopped else 0


def _run(options: BacktestOptions, chosen: DataSelection) -> tuple[BacktestResult, Tape | BarTape]:
    from qts import telemetry
    from qts.backtest import load_instruments, run_backtest

    instances = options.instances()
    strategies = [each.create() for each in instances]
    settings = replace(options.settings(), instances=instances)
    tape, source, chosen = options.read_tape(chosen)
    known = load_instruments(options.instruments, options.data, options.venue)
    telemetry.configure(telemetry.TelemetryConfig(log_level="error"))
    with show_progress(tape.events) as progress:
        result = run_backtest(
            strategies,
            tape,
            settings,
            instruments=known,
            way=options.way,
            progress=progress,
            ends_process=True,
        )
    return (
        replace(
            result,
            data=replace(result.data, source=source),
            command=options.command(chosen, os.environ),
        ),
        tape,
    )


def _submit(options: BacktestOptions, chosen: DataSelection, html: Path | None) -> int:
    """Submit the backtest as a job, after everything that can be refused now was checked."""
    from qts.cli.jobs import submit

    for each in options.instances():
        each.create()
    options.settings()
    options.read_tape(chosen)
    arguments = options.arguments(chosen)
    if html is not None:
        arguments += ("--html", str(html.resolve()))
    typer.echo(submit(options.config, arguments))
    return 0


def _print(result: BacktestResult, *, on_stderr: bool) -> None:
    from qts.backtest import render_table

    print_tables(render_table(result), on_stderr=on_stderr)
    for warning in result.warnings:
        typer.echo(f"warning: {warning}", err=True)


def _write(
    result: BacktestResult, tape: Tape | BarTape, output: JsonFile, page: Path | None
) -> None:
    from qts.backtest import render_html, to_json

    output.write(to_json(result))
    if page is not None:
        page.write_text(render_html(result, tape), encoding="utf-8")
