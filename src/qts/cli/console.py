"""What verbs share: one errand to the database of the settings, one measurement, one answer.

Options that several verbs share.

Where a command's JSON goes: a file, checked before the work starts, or standard output.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from qts.domain import RefusedError

if TYPE_CHECKING:
    from qts.database import Database


T = TypeVar("T")


def with_database(
    config: Path | None, ask: Callable[[Database], Awaitable[T]], schema: int = 0
) -> T:
    """Refused when the database is older than `schema`, the version that brought what is asked."""
    from qts.app import open_database
    from qts.config import load
    from qts.database import migration_status

    async def answer() -> T:
        async with open_database(load(config, os.environ)) as database:
            found = await migration_status(database)
            if found.current < schema:
                raise RefusedError(
                    f"the database at {database.where} has schema {found.current}, and {schema} is "
                    "needed; run qts database migrate"
                )
            return await ask(database)

    return asyncio.run(answer())


def run_measurement(work: Coroutine[Any, Any, T]) -> T:
    """Its report tells what happened; the log only what went wrong."""
    import uvloop

    from qts import telemetry

    telemetry.configure(telemetry.TelemetryConfig(log_level="error"))
    try:
        return uvloop.run(work)
    finally:
        telemetry.shutdown()


def print_json(value: object) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="Settings file (TOML).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


class JsonFile:
    """`--json FILE`: refused at once when it could not be written at the end; - prints."""

    def __init__(self, name: str | None) -> None:
        self.prints = name == "-"
        self._path = Path(name) if name and not self.prints else None
        if self._path and (self._path.is_dir() or not os.access(self._path.parent, os.W_OK)):
            raise RefusedError(
                f"--json {name}: cannot be written; name a file in a directory that can"
            )

    def write(self, value: object) -> None:
        text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
        if self.prints:
            typer.echo(text)
        elif self._path:
            self._path.write_text(text + "\n", encoding="utf-8")
