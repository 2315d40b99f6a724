"""What commands share: options, one database session, one measurement, JSON output."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from qts.domain import AccountKey, RefusedError, name_choices

if TYPE_CHECKING:
    from uuid import UUID

    from rich.console import RenderableType

    from qts.config import Config
    from qts.database import Database
    from qts.orders import BaselineHolding, OrderRow, PositionRow
    from qts.outbox import PostgresBus

T = TypeVar("T")

ACCOUNT_SCHEMA = 20  # adds accounts, and instruments, whose names are shown

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
BrokerOption = Annotated[
    str | None,
    typer.Option("--broker", metavar="NAME", help="The broker, if not that of the settings."),
]
AccountOption = Annotated[
    str | None,
    typer.Option("--account", metavar="DIGEST", help="The account, if not that of the settings."),
]
AccountsOption = Annotated[
    str | None,
    typer.Option(
        "--account", metavar="DIGEST|all", help="The account, if not that of the settings, or all."
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def load_config(config: Path | None) -> Config:
    """Return the settings of a command."""
    from qts.config import load

    return load(config, os.environ)


def open_publisher(
    database: Database, config: Path | None
) -> AbstractAsyncContextManager[PostgresBus]:
    """Open the bus to publish with: always the database, with the streams of the settings."""
    from qts.outbox import PostgresBus

    return PostgresBus.open(database, load_config(config).outbox.streams)


def with_database(
    config: Path | None, query: Callable[[Database], Awaitable[T]], schema: int = 0
) -> T:
    """Run one query on the database of the settings.

    Refused when its schema is older than `schema`, the version that added what is queried.
    """
    import asyncio

    from qts.app import open_database
    from qts.database import require_schema

    async def run() -> T:
        async with open_database(load_config(config)) as database:
            await require_schema(database, schema)
            return await query(database)

    return asyncio.run(run())


def with_account(
    config: Path | None,
    query: Callable[[Database, AccountKey], Awaitable[T]],
    broker: str | None = None,
    account: str | None = None,
    schema: int = ACCOUNT_SCHEMA,
) -> T:
    """Run one query on an account: that of the settings, or the one that is named."""

    async def run(database: Database) -> T:
        return await query(database, await chosen_account(database, config, broker, account))

    return with_database(config, run, schema)


def with_each_account(
    config: Path | None,
    query: Callable[[Database, AccountKey], Awaitable[T]],
    account: str | None,
) -> dict[str, T]:
    """Run one query on the account that is named, or on every account of the settings.

    Returns the results by venue; the only account of the settings has no venue.
    """
    venues = load_config(config).feed.venues
    if account is not None or len(venues) == 1:
        return {"": with_account(config, query, account=account)}
    return {venue: with_account(config, query, account=venue) for venue in venues}


def with_run_accounts(
    config: Path | None,
    query: Callable[[Database, list[AccountKey]], Awaitable[T]],
    account: str | None,
    schema: int,
) -> T:
    """Run one query on the account that is named, or on every account of the settings (all)."""

    async def run(database: Database) -> T:
        if account in (None, "all"):
            venues = load_config(config).feed.venues
            names = [None] if len(venues) == 1 else list(venues)
        else:
            names = [account]
        keys = [await chosen_account(database, config, None, name) for name in names]
        return await query(database, keys)

    return with_database(config, run, schema)


def with_accounts(
    config: Path | None,
    query: Callable[[Database, AccountKey | None], Awaitable[T]],
    account: str | None,
    schema: int = ACCOUNT_SCHEMA,
) -> T:
    """Run one query that only reads: on an account, or on all of them (None)."""

    async def run(database: Database) -> T:
        if account == "all" or (account is None and len(load_config(config).feed.venues) > 1):
            return await query(database, None)
        return await query(database, await chosen_account(database, config, None, account))

    return with_database(config, run, schema)


async def chosen_account(
    database: Database, config: Path | None, broker: str | None, account: str | None
) -> AccountKey:
    """Return the account that is named, or that of the settings; raise RefusedError for others."""
    from qts.app import run_accounts
    from qts.brokers import list_accounts, open_account
    from qts.orders import check_broker

    settings = load_config(config)
    if broker is not None:
        check_broker(broker)
    own = run_accounts(settings)
    if account is None or (account in own and len(own) > 1):
        fitting = [
            key
            for venue, key in own.items()
            if account in (None, venue) and broker in (None, key.broker)
        ]
        if len(fitting) > 1:
            raise RefusedError(
                f"feed.venue names several venues; name the account: --account {' or '.join(own)}"
            )
        if fitting:
            is_live = settings.brokers.mode == "live" and fitting[0].broker != "paper"
            await open_account(database, fitting[0], is_live=is_live)
            return fitting[0]
    known = [key for key in await list_accounts(database) if broker in (None, key.broker)]
    if account is not None:
        found = [key for key in known if account in _names_of(key)]
        if len(found) == 1:
            return found[0]
        where = f" at {broker}" if broker else ""
        raise RefusedError(
            f"account {account!r}{where} is {'ambiguous' if found else 'unknown'}; expected one of "
            f"{name_choices(account, map(str, found or known))}"
        )
    if len(known) == 1:
        return known[0]
    if known:
        names = ", ".join(map(str, known))
        raise RefusedError(f"{broker} has several accounts; name one with --account: {names}")
    raise RefusedError(
        f"no account at {broker} was ever opened here; use the settings that name it (--config)"
    )


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


def parse_number(name: str, text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise RefusedError(f"{name} {text!r} is not a number") from None


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


@contextmanager
def show_progress(events: int | None) -> Iterator[Callable[[int], None]]:
    """Show how many events are done, of all if that is known; only on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _events: None
        return
    columns = ("events", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("events", total=events)
        yield lambda done: bar.update(task, completed=done)


def html_file(path: Path | None) -> Path | None:
    """Return the target of `--html FILE`, checked before the work starts."""
    if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        raise RefusedError(f"--html {path}: cannot be written; name a file in a writable directory")
    return path


def print_tables(*tables: RenderableType, on_stderr: bool = False) -> None:
    """Print the tables with a line between them; a pipe gets whole lines."""
    from rich.console import Console

    console = Console(stderr=on_stderr, highlight=False)
    if not console.is_terminal:
        console.width = 200
    for number, table in enumerate(tables):
        if number:
            console.print()
        console.print(table)


def format_number(value: object) -> str:
    """Format a number without trailing zeros."""
    if not isinstance(value, Decimal):
        return str(value)
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _names_of(key: AccountKey) -> set[str]:
    """Return what --account may say for this account."""
    return {name for text in (str(key), key.short) for name in (text, text.partition(":")[2])}


def account_column(
    rows: Sequence[OrderRow | PositionRow | BaselineHolding],
) -> Callable[[OrderRow | PositionRow | BaselineHolding | None], str]:
    """Return the text of the first column: the account, only where there are several."""
    keys = {AccountKey(row.broker, row.account) for row in rows}
    if len(keys) < 2:
        return lambda _row: ""
    width = max(len(key.short) for key in keys) + 2

    def column(row: OrderRow | PositionRow | BaselineHolding | None) -> str:
        text = "account" if row is None else AccountKey(row.broker, row.account).short
        return f"{text:<{width}}"

    return column
