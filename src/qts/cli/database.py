"""`qts ops database`, `backup` and `restore`: the schema and the state."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qts.cli.console import ConfigOption, JsonOption, print_json, with_database
from qts.cli.groups import command_group

if TYPE_CHECKING:
    from qts.database import Migration, MigrationStatus


app = command_group("Database schema: migrate, status.", "qts ops database status")


@app.command()
def migrate(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Apply the pending migrations; a second run finds nothing to do.

    Example: qts ops database migrate --config qts.toml
    """
    from qts.database import migrate as apply

    applied = with_database(config, apply)
    if as_json:
        print_json({"applied": [_row(migration) for migration in applied]})
    elif applied:
        typer.echo("\n".join(f"applied {migration.file}" for migration in applied))
    else:
        typer.echo("nothing to do: the schema is up to date")


@app.command()
def status(config: ConfigOption = None, as_json: JsonOption = False) -> None:
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
                "pending": [_row(migration) for migration in found.pending],
            }
        )
    else:
        typer.echo("\n".join(_lines(found)))


def _row(migration: Migration) -> dict[str, object]:
    return {"version": migration.version, "name": migration.name, "checksum": migration.checksum}


def _lines(found: MigrationStatus) -> list[str]:
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
