"""What commands share: options, one database session, one measurement, JSON output."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from qts.domain import RefusedError

if TYPE_CHECKING:
    from uuid import UUID

    from qts.config import Config
    from qts.database import Database

T = TypeVar("T")

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="Settings file (TOML).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
JsonFileOption = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write the result as JSON; - prints it."),
]
DurationOption = Annotated[
    str | None,
    typer.Option("--duration", "--for", metavar="TIME", help="Stop after this: 500ms, 60s, 2h."),
]
MeasureOption = Annotated[
    str,
    typer.Option("--duration", "--for", metavar="TIME", help="How long to measure: 500ms, 60s."),
]
SymbolOption = Annotated[
    str | None, typer.Option("--symbol", metavar="SYMBOL", help="Only this symbol.")
]
StrategyOption = Annotated[
    str | None, typer.Option("--strategy", metavar="KEY", help="Only this strategy.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def load_config(config: Path | None) -> Config:
    """Return the settings of a command."""
    from qts.config import load

    return load(config, os.environ)


def with_database(
    config: Path | None, query: Callable[[Database], Awaitable[T]], schema: int = 0
) -> T:
    """Run one query on the database of the settings.

    Refused when its schema is older than `schema`, the version that added what is queried.
    """
    import asyncio

    from qts.app import open_database
    from qts.database import migration_status

    async def run() -> T:
        async with open_database(load_config(config)) as database:
            found = await migration_status(database)
            if found.current < schema:
                raise RefusedError(
                    f"the database at {database.where} has schema {found.current}, and {schema} is "
                    "needed; run qts ops database migrate"
                )
            return await query(database)

    return asyncio.run(run())


def run_measurement(measurement: Coroutine[Any, Any, T]) -> T:
    """Run a measurement; only errors are logged."""
    import uvloop

    from qts import telemetry

    telemetry.configure(telemetry.TelemetryConfig(log_level="error"))
    try:
        return uvloop.run(measurement)
    finally:
        telemetry.shutdown()


def to_json(value: object) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def print_json(value: object) -> None:
    typer.echo(to_json(value))


def parse_uuid(text: str, expected: str) -> UUID:
    from uuid import UUID

    try:
        return UUID(text)
    except ValueError:
        raise RefusedError(f"{text!r} is not {expected}") from None


class JsonFile:
    """The target of `--json FILE`: checked before the work starts; - is standard output."""

    def __init__(self, name: str | None) -> None:
        self.prints = name == "-"
        self._path = Path(name) if name and not self.prints else None
        if self._path and (self._path.is_dir() or not os.access(self._path.parent, os.W_OK)):
            raise RefusedError(
                f"--json {name}: cannot be written; name a file in a writable directory"
            )

    def write(self, value: object) -> None:
        if self.prints:
            print_json(value)
        elif self._path:
            self._path.write_text(to_json(value) + "\n", encoding="utf-8")
