"""`qts setup`: the key of a venue, checked at the venue and stored."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qts.cli.console import ConfigOption
from qts.cli.rehearse import RehearsedSymbol, StepOutput, VenueArgument, check_venue, run_steps
from qts.domain import OperationError, RefusedError, Secret

if TYPE_CHECKING:
    from qts.config import Config, Setting

SECRETS = "secrets"  # folder in the home


def setup(
    venue: VenueArgument,
    paper: Annotated[
        bool | None,
        typer.Option("--paper/--real", help="The key is for paper trading, or for real money."),
    ] = None,
    symbol: RehearsedSymbol = None,
    config: ConfigOption = None,
) -> None:
    """Ask for the key of a venue, check it there and store it.

    Nothing that is typed is shown. The key is checked with requests that place nothing, and stored
    in files with mode 0600 in the home, which the settings file then names. Without a terminal the
    key comes from the settings or the environment.

    Example: QTS_VENUES__UPBIT__ACCESS_KEY__FILE=key qts setup upbit
    """
    check_venue(venue)

    from qts.app import RehearsalOptions, check_key, resolve_home
    from qts.brokers import venue_of, venue_settings
    from qts.config import resolve
    from qts.domain import SystemClock

    found = resolve(config, os.environ)
    settings = found.config
    table = venue_settings(settings.venues, venue_of(venue))
    chosen = _paper(venue, table, paper)
    chosen = _secrets(settings, venue, table) | chosen
    checked = _with_table(settings, venue, table, chosen)
    output = StepOutput(venue, yes=True)
    options = RehearsalOptions(symbol)
    run_steps(check_key(checked, venue, options, output, SystemClock()))
    home = resolve_home(settings)
    file = found.file or home.path / "qts.toml"
    _store(file, home.path, venue, chosen)
    typer.echo(f"Stored in {home.path / SECRETS}, and named in {file}.")
    typer.echo(f"Next: qts rehearse {venue}")


def _secrets(settings: Config, venue: str, table: Any) -> dict[str, Any]:
    """Return the secrets of a venue: typed, or those of the settings."""
    from qts.config import settings_of

    asked = [each for each in settings_of(settings) if each.path[:2] == ("venues", venue)]
    asked = [each for each in asked if each.secret and len(each.path) == 3]
    if not asked:
        raise RefusedError(f"venues.{venue} has no key to set up")
    if sys.stdin.isatty():
        return {each.path[2]: _typed(each, getattr(table, each.path[2])) for each in asked}
    found = {each.path[2]: getattr(table, each.path[2]) for each in asked}
    if missing := [each for each in asked if not found[each.path[2]]]:
        names = ", ".join(f"{each.variable} or {each.variable}__FILE" for each in missing)
        raise RefusedError(f"without a terminal the key comes from the environment; set {names}")
    return found


def _typed(setting: Setting, current: Secret | None) -> Secret:
    kept = " (set; Enter keeps it)" if current else ""
    while True:
        text = typer.prompt(
            f"{setting.description}{kept}",
            default="",
            show_default=False,
            hide_input=True,
            err=True,
        )
        if text.strip():
            return Secret(text.strip())
        if current:
            return current


def _paper(venue: str, table: Any, paper: bool | None) -> dict[str, Any]:
    """Return whether the key is for paper trading, where the venue has that."""
    if not hasattr(table, "paper"):
        if paper is not None:
            raise RefusedError(f"--paper, --real: {venue} has no paper trading; leave it out")
        return {}
    if paper is None and sys.stdin.isatty():
        paper = typer.confirm("Is the key for paper trading?", default=table.paper, err=True)
    return {"paper": table.paper if paper is None else paper}


def _with_table(settings: Config, venue: str, table: Any, values: Mapping[str, Any]) -> Config:
    from msgspec.structs import replace

    try:
        changed = replace(table, **values)
    except ValueError as error:
        raise RefusedError(f"venues.{venue}.{error}") from None
    return replace(settings, venues=replace(settings.venues, **{venue: changed}))


def _store(file: Path, home: Path, venue: str, values: Mapping[str, Any]) -> None:
    """Write each secret to a private file, and their names and the rest to the settings file."""
    from qts.config import toml, with_keys, write_private

    folder = home / SECRETS
    paths = {name: folder / f"{venue}-{name}" for name in values}
    written = {
        name: f"{{ file = {toml(paths[name])} }}" if isinstance(value, Secret) else toml(value)
        for name, value in values.items()
    }
    text = with_keys(file, f"venues.{venue}", written)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        for name, value in values.items():
            if isinstance(value, Secret):
                write_private(paths[name], f"{value.reveal()}\n")
        write_private(file, text)
    except OSError as error:
        raise OperationError(f"cannot write {error.filename}: {error.strerror}") from None
