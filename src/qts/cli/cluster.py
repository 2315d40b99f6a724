"""`qts optimise worker`: run trials of studies that other machines put into a database."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qts.cli.console import ConfigOption, load_config
from qts.cli.groups import CommandGroup, PlainCommand
from qts.domain import RefusedError, Secret

if TYPE_CHECKING:
    from qts.database import Database

SCHEMA = 28  # adds the studies
SETTINGS = "settings"
_FORMS = ("postgresql://", "postgres://")

DatabaseOption = Annotated[
    str,
    typer.Option(
        "--database", metavar="URL", help="PostgreSQL of the studies; settings: of the settings."
    ),
]
LeaseOption = Annotated[
    float,
    typer.Option(
        "--lease", min=1, max=3600, metavar="S", help="After which a killed worker's trial is free."
    ),
]
IdleOption = Annotated[
    float | None,
    typer.Option("--idle", min=0, metavar="S", help="End when no trial came for so long."),
]


class SearchCommand(PlainCommand):
    """The search; with `worker` as its first word, the worker."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **more: Any
    ) -> Any:
        if args and args[0] == "worker":
            command: Any = _worker_command()
            return command.make_context(f"{info_name} worker", args[1:], parent, **more)
        return super().make_context(info_name, args, parent, **more)


def _worker_command() -> Any:
    single = CommandGroup(add_completion=False, rich_markup_mode=None)
    single.command("worker")(worker)
    return typer.main.get_command(single)


def cluster_database(
    address: str, config: Path | None
) -> Callable[[], AbstractAsyncContextManager[Database]]:
    """Return what opens the database of a cluster; refuse an address that is none."""
    from msgspec.structs import replace

    from qts.app import open_database
    from qts.database import require_schema

    settings = load_config(config)
    if address != SETTINGS:
        if not address.startswith(_FORMS):
            raise RefusedError(
                f"{address!r} is not the address of a cluster; expected"
                " postgresql://user:password@host:port/name, or settings"
            )
        settings = replace(settings, database=replace(settings.database, url=Secret(address)))

    @asynccontextmanager
    async def open_checked() -> AsyncIterator[Database]:
        async with open_database(settings) as database:
            await require_schema(database, SCHEMA)
            yield database

    return open_checked


def worker(
    database: DatabaseOption = SETTINGS,
    processes: Annotated[
        int | None, typer.Option(min=1, max=256, help="Default: one for each CPU.")
    ] = None,
    lease: LeaseOption = 30.0,
    idle: IdleOption = None,
    config: ConfigOption = None,
) -> None:
    """Run trials of `qts optimise --cluster` until Ctrl-C.

    The bars come from the database; the file of the strategy must be here, at the same path or in
    this folder. A worker that is killed costs the trials that it runs, which others get after the
    lease.

    Example: qts optimise worker --database postgresql://qts@db.example/qts
    """
    from qts import telemetry
    from qts.machine import detect_topology
    from qts.optimise import start_fork_server

    start_fork_server()
    telemetry.configure(telemetry.TelemetryConfig(log_level="error"))
    opening = cluster_database(database, config)
    asyncio.run(_work(opening, processes or detect_topology().usable, lease, idle))


async def _work(
    opening: Callable[[], AbstractAsyncContextManager[Database]],
    processes: int,
    lease_s: float,
    idle_s: float | None,
) -> None:
    from qts.optimise import ClusterWorker

    async with opening() as database:
        found = ClusterWorker(database, processes, typer.echo, lease_s=lease_s, idle_s=idle_s)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, found.stop)
        typer.echo(f"worker {os.getpid()}: {processes} processes, waiting for trials")
        await found.run()
        typer.echo(f"{found.trials:,} trials run")
