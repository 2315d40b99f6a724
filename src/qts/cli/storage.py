"""What QTS stores: `qts ops database`, `backup`, `restore`, `cache` and `state`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from qts.cli.console import (
    AccountOption,
    ConfigOption,
    JsonOption,
    YesOption,
    print_json,
    with_account,
    with_database,
)
from qts.cli.groups import command_group
from qts.domain import OperationError, RefusedError, name_choices

if TYPE_CHECKING:
    from qts.cache import CacheConfig, CacheStatus, CacheStore, ServerStatus
    from qts.database import Database, Migration, MigrationStatus
    from qts.domain import AccountKey

T = TypeVar("T")

database = command_group("Database schema: migrate, status.", "qts ops database status")


@database.command()
def migrate(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Apply the pending migrations; a second run finds nothing to do.

    Example: qts ops database migrate --config qts.toml
    """
    from qts.database import migrate as apply

    applied = with_database(config, apply)
    if as_json:
        print_json({"applied": [_migration_row(migration) for migration in applied]})
    elif applied:
        typer.echo("\n".join(f"applied {migration.file}" for migration in applied))
    else:
        typer.echo("nothing to do: the schema is up to date")


@database.command(name="status")
def schema_status(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the schema version and the applied and pending migrations; changes nothing.

    Example: qts ops database status --json
    """
    from qts.database import migration_status

    found = with_database(config, migration_status)
    if as_json:
        print_json(
            {
                "current": found.current,
                "latest": found.latest,
                "applied": found.applied,
                "pending": [_migration_row(migration) for migration in found.pending],
            }
        )
    else:
        typer.echo("\n".join(_schema_lines(found)))


def _migration_row(migration: Migration) -> dict[str, object]:
    return {"version": migration.version, "name": migration.name, "checksum": migration.checksum}


def _schema_lines(found: MigrationStatus) -> list[str]:
    return [
        f"schema {found.current} of {found.latest}",
        *(
            f"  applied {row.version:04}_{row.name}  {row.applied_at:%Y-%m-%d %H:%M:%S} UTC"
            for row in found.applied
        ),
        *(f"  pending {migration.file.removesuffix('.sql')}" for migration in found.pending),
    ]


FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The backup file.")]


def backup(file: FileArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Write the state to one file, also while QTS runs.

    Secrets are not in it.

    Example: qts ops backup /backups/qts-2026-11-16.tar
    """
    from qts.app import write_backup
    from qts.config import resolve

    manifest = asyncio.run(write_backup(resolve(config, os.environ), file))
    if as_json:
        print_json(manifest)
        return
    size = file.stat().st_size / 1e6
    typer.echo(f"{file}: {size:,.1f} MB, schema {manifest.schema}")
    if manifest.records:
        total = sum(record.bytes for record in manifest.records) / 1e6
        typer.echo(f"{len(manifest.records)} record files ({total:,.1f} MB) are listed, not copied")


def restore(file: FileArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Restore a backup into an empty home or database.

    Trading stays stopped until `qts kill off`.

    Example: QTS_HOME=/srv/qts-new qts ops restore /backups/qts-2026-11-16.tar
    """
    from qts.app import restore_backup
    from qts.config import resolve

    manifest = asyncio.run(restore_backup(resolve(config, os.environ), file))
    if as_json:
        print_json(manifest)
        return
    typer.echo(f"restored the state of {manifest.created_at:%F %T} UTC, schema {manifest.schema}")
    typer.echo("trading is STOPPED: reconcile with the venue, then qts kill off")


BATCH = 500  # keys that one request deletes

cache = command_group("Cache: status, one value, flush.", "qts ops cache status")


@cache.command(name="status")
def cache_status(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the server, the number of keys by kind, and the figures of running processes.

    Example: qts ops cache status --json
    """
    from qts.cache import inspect_server

    found = _with_store(config, inspect_server)
    if as_json:
        print_json(found)
    else:
        typer.echo("\n".join(_cache_lines(found)))


@cache.command()
def get(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="price, position, book, risk, order, strategy.")
    ],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Symbol, account, order or strategy.")
    ],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one value as stored in Redis.

    Example: qts ops cache get price 005930
    """
    from qts.cache import read_raw

    found = _with_store(config, lambda store, settings: read_raw(store, settings, kind, name))
    if found is None:
        raise OperationError(f"the cache has no {kind} of {name}")
    if as_json:
        print_json(found)
    else:
        width = max(map(len, found))
        typer.echo("\n".join(f"{field:<{width}}  {value}" for field, value in found.items()))


@cache.command()
def flush(config: ConfigOption = None, yes: YesOption = False) -> None:
    """Delete the keys of QTS, and no other, after a confirmation. The database is unchanged.

    Example: qts ops cache flush --yes
    """
    if not yes and not sys.stdin.isatty():
        raise RefusedError(
            "qts ops cache flush asks for confirmation; add --yes where there is no terminal"
        )

    async def confirm_and_delete(store: CacheStore, settings: CacheConfig) -> int:
        keys = await store.keys(settings.prefix)
        if not yes and not typer.confirm(
            f"Delete {len(keys)} keys that begin with {settings.prefix}?"
        ):
            raise typer.Abort
        return sum([await store.delete(keys[at : at + BATCH]) for at in range(0, len(keys), BATCH)])

    typer.echo(f"deleted {_with_store(config, confirm_and_delete)} keys")


def _with_store(config: Path | None, query: Callable[[CacheStore, CacheConfig], Awaitable[T]]) -> T:
    from qts.app import open_store
    from qts.config import load

    async def run() -> T:
        settings = load(config, os.environ)
        async with open_store(settings) as store:
            return await query(store, settings.cache)

    return asyncio.run(run())


def _cache_lines(found: ServerStatus) -> list[str]:
    server = found.server
    used = f"{server.used_memory / 1e6:.1f} MB"
    if server.max_memory:
        used += f" of {server.max_memory / 1e6:.0f} MB"
    return [
        f"server   {server.version}, {used}, {server.clients} clients, "
        f"{server.evicted_keys} keys evicted",
        "keys     "
        + (", ".join(f"{kind} {count}" for kind, count in found.keys.items()) or "none"),
        *(line for pid, status in found.processes.items() for line in _process_lines(pid, status)),
    ]


def _process_lines(pid: str, status: CacheStatus) -> list[str]:
    lines = [
        f"process  {pid}: circuit {status.breaker}, opened {status.breaker_opened} times; "
        f"{status.queue.depth} writes pending; PreCheck p50 {status.precheck_p50_us:.0f} us, "
        f"p99 {status.precheck_p99_us:.0f} us"
    ]
    for kind, region in status.kinds.items():
        if region.hit_rate is not None:
            goal = f", goal {region.goal:.0%}" if region.goal else ""
            lines.append(f"  {kind:<9} hit rate {region.hit_rate:.1%} of {region.recent}{goal}")
    return lines + [
        f"  {each.severity.upper()}: {each.rule}: {each.text}" for each in status.alerts()
    ]


STATE_SCHEMA = 23  # adds the states

state = command_group("States of strategies: list, clear.", "qts ops state list")


@state.command(name="list")
def list_(
    account: AccountOption = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """List the stored states of an account.

    Example: qts ops state list --json
    """
    from qts.pipeline import list_states

    rows = with_account(config, list_states, account=account, schema=STATE_SCHEMA)
    if as_json:
        print_json({"states": rows})
        return
    for row in rows:
        typer.echo(
            f"{row.strategy_key}  {row.size_bytes:,} bytes, {row.updated_at:%Y-%m-%d %H:%M:%S}"
        )
        for name, value in row.state.items():
            typer.echo(f"  {name:<16}{value}")
    if not rows:
        typer.echo("no states")


@state.command()
def clear(
    strategy: Annotated[str, typer.Argument(metavar="KEY", help="The strategy's key.")],
    account: AccountOption = None,
    config: ConfigOption = None,
) -> None:
    """Remove the stored state of a strategy: it begins with the defaults at the next start.

    Example: qts ops state clear mine
    """
    from qts.brokers import is_account_locked
    from qts.pipeline import clear_state, list_states

    async def run(database: Database, key: AccountKey) -> None:
        if await is_account_locked(database, key):
            raise RefusedError(f"a run trades account {key}; stop it before its states are changed")
        if not await clear_state(database, key, strategy):
            known = [each.strategy_key for each in await list_states(database, key)]
            raise RefusedError(
                f"strategy {strategy!r} has no stored state; expected"
                f" {name_choices(strategy, known)}"
            )

    with_account(config, run, account=account, schema=STATE_SCHEMA)
    typer.echo(f"the state of {strategy} is removed")
