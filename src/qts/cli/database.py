"""`qts ops database`: migrate the schema and show its version."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
