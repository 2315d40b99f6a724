"""`qts config`: check, show and begin a settings file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from qts.cli.console import ConfigOption
from qts.cli.groups import command_group
from qts.domain import OperationError, RefusedError

app = command_group(
    "Settings: check a file, show the values in force, begin a file.",
    "qts config check --config qts.toml",
    "check, show, init",
)


@app.command()
def check(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The same as --config FILE.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Check the settings as a run does and load the strategies: exit 0, or each problem and exit 2.

    Example: qts config check --config qts.toml
    """
    from qts.app import check_settings
    from qts.config import resolve

    if file is not None and config is not None and file != config:
        raise RefusedError(f"two settings files, {file} and {config}; expected one")
    found = resolve(config or file, os.environ)
    found.config.notify.check()
    check_settings(found.config)
    overridden = sum(origin.kind == "environment" for origin in found.origins.values())
    name = found.file or "no settings file"
    typer.echo(f"OK: {name}, {found.written} settings, {overridden} overridden by the environment")


@app.command()
def show(
    config: ConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of TOML.")] = False,
) -> None:
    """Print the settings in force and the origin of each; secrets as ***.

    Example: qts config show --json
    """
    from qts.config import describe, render, resolve

    found = resolve(config, os.environ)
    if as_json:
        typer.echo(json.dumps(describe(found), indent=2, ensure_ascii=False))
        return
    typer.echo(f"# {found.file or 'no settings file: defaults and environment'}\n")
    typer.echo(render(found.config, found.origins), nl=False)


@app.command()
def init(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")] = Path("qts.toml"),
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a settings file that explains every key; all values are the defaults.

    Example: qts config init qts.toml
    """
    from qts.config import render_template, write_private

    try:
        if path.is_dir():
            raise RefusedError(f"cannot write {path}: it is a directory")
        write_private(path, render_template(), replace=force)
    except FileExistsError:
        raise RefusedError(f"{path} exists; give another path, or --force to replace it") from None
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise RefusedError(f"cannot write {path}: {error.strerror}") from None
    except OSError as error:
        raise OperationError(f"cannot write {path}: {error.strerror}") from None
    typer.echo(f"Wrote {path}")
