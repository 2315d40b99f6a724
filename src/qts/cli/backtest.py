"""`qts backtest` and `qts ops jobs`: strategies over ticks or bars, here or as a job."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

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
    DurationOption,
    JsonFile,
    JsonFileOption,
    JsonOption,
    html_file,
    load_config,
    open_publisher,
    parse_uuid,
    print_json,
    print_tables,
    show_progress,
    with_database,
)
from qts.cli.file_layout import (
    ColumnsOption,
    FileOptions,
    FileSymbolOption,
    MapOption,
    TimeframeOption,
    ZoneOption,
)
from qts.cli.groups import command_group
from qts.domain import parse_duration

if TYPE_CHECKING:
    from qts.backtest import BacktestResult, BarTape, DataSelection, JobRow, Tape
    from qts.database import Database


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
    result, tape = _run_backtest(options, chosen)
    _print(result, on_stderr=output.prints)
    _write(result, tape, output, page)
    return 1 if result.stopped else 0


def _run_backtest(
    options: BacktestOptions, chosen: DataSelection
) -> tuple[BacktestResult, Tape | BarTape]:
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
    for each in options.instances():
        each.create()
    options.settings()
    options.read_tape(chosen)
    arguments = options.arguments(chosen)
    if html is not None:
        arguments += ("--html", str(html.resolve()))
    typer.echo(_store_job(options.config, arguments))
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


JOB_SCHEMA = 12  # adds the jobs

jobs = command_group("Backtest jobs: list, show, work.", "qts ops jobs list")


@jobs.command(name="list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of rows.")] = 50,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, newest first.

    Example: qts ops jobs list --json
    """
    from qts.backtest import list_jobs

    rows = with_database(config, lambda database: list_jobs(database, limit), JOB_SCHEMA)
    if as_json:
        print_json({"backtests": rows})
    else:
        typer.echo("\n".join(map(_job_line, rows)) or "no jobs")


@jobs.command()
def show(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's id, from the list.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one job and its result.

    Example: qts ops jobs show 0198c0de-0000-7000-8000-000000000001
    """
    from qts.backtest import show_job

    job_id = parse_uuid(job, "a job id; expected a UUID, see qts ops jobs list")
    row = with_database(config, lambda database: show_job(database, job_id), JOB_SCHEMA)
    if as_json:
        print_json(row)
        return
    typer.echo(_job_line(row))
    for name, value in (row.result or {}).get("performance", {}).items():
        typer.echo(f"  {name:<16}{'-' if value is None else value}")


@jobs.command()
def work(duration: DurationOption = None, config: ConfigOption = None) -> None:
    """Run pending jobs, one after the other, until Ctrl-C. A run takes jobs as well.

    Example: qts ops jobs work
    """
    seconds = parse_duration(duration) if duration else None
    with_database(config, lambda database: _work_on_jobs(database, config, seconds), JOB_SCHEMA)


def _store_job(config: Path | None, arguments: tuple[str, ...]) -> UUID:
    from qts.backtest import submit_job

    async def store(database: Database) -> UUID:
        async with open_publisher(database, config) as bus:
            return await submit_job(database, bus, arguments)

    return with_database(config, store, JOB_SCHEMA)


async def _work_on_jobs(database: Database, config: Path | None, seconds: float | None) -> None:
    from msgspec.structs import replace

    from qts.backtest import BacktestJobHandler
    from qts.outbox import BACKTEST_COMMAND, Dispatcher, open_bus

    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    dispatcher = Dispatcher()
    async with open_bus(database, replace(load_config(config).outbox, run_relay=False)) as bus:
        BacktestJobHandler(database, bus).register(dispatcher)
        consumer = bus.consumer(BACKTEST_COMMAND, dispatcher)
        running = asyncio.create_task(consumer.run())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({running, stopped}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        consumer.stop()
        await running


def _job_line(row: JobRow) -> str:
    note = f"  {row.error}" if row.error else ""
    arguments = " ".join(row.arguments)
    return f"{row.created_at:%Y-%m-%d %H:%M:%S}  {row.job_id}  {row.status:<8} {arguments}{note}"
