"""`qts ops backup` and `qts ops restore`: the state in one file, and back."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from qts.cli.console import ConfigOption, JsonOption, print_json

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
