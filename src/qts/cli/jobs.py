"""`qts ops jobs`: backtest jobs, their results, and the worker that runs them."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from qts.cli.console import (
    ConfigOption,
    DurationOption,
    JsonOption,
    load_config,
    open_publisher,
    parse_uuid,
    print_json,
    with_database,
)
from qts.cli.groups import command_group
from qts.domain import parse_duration

if TYPE_CHECKING:
    from qts.backtest import JobRow
    from qts.database import Database

SCHEMA = 12  # adds the jobs

app = command_group("Backtest jobs: list, show, work.", "qts ops jobs list")


@app.command(name="list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of rows.")] = 50,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, newest first.

    Example: qts ops jobs list --json
    """
    from qts.backtest import list_jobs

    rows = with_database(config, lambda database: list_jobs(database, limit), SCHEMA)
    if as_json:
        print_json({"backtests": rows})
    else:
        typer.echo("\n".join(map(_line, rows)) or "no jobs")


@app.command()
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
    row = with_database(config, lambda database: show_job(database, job_id), SCHEMA)
    if as_json:
        print_json(row)
        return
    typer.echo(_line(row))
    for name, value in (row.result or {}).get("performance", {}).items():
        typer.echo(f"  {name:<16}{'-' if value is None else value}")


@app.command()
def work(duration: DurationOption = None, config: ConfigOption = None) -> None:
    """Run pending jobs, one after the other, until Ctrl-C. A run takes jobs as well.

    Example: qts ops jobs work
    """
    seconds = parse_duration(duration) if duration else None
    with_database(config, lambda database: _work(database, config, seconds), SCHEMA)


def submit(config: Path | None, arguments: tuple[str, ...]) -> UUID:
    from qts.backtest import submit_job

    async def store(database: Database) -> UUID:
        async with open_publisher(database, config) as bus:
            return await submit_job(database, bus, arguments)

    return with_database(config, store, SCHEMA)


async def _work(database: Database, config: Path | None, seconds: float | None) -> None:
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


def _line(row: JobRow) -> str:
    note = f"  {row.error}" if row.error else ""
    arguments = " ".join(row.arguments)
    return f"{row.created_at:%Y-%m-%d %H:%M:%S}  {row.job_id}  {row.status:<8} {arguments}{note}"
