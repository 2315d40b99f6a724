"""`qts setup` and `qts rehearse`: the key of a venue, and its smallest orders before a run."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qts.cli.console import ConfigOption, YesOption, load_config
from qts.domain import OperationError, QtsError, RefusedError, Secret, check_name

if TYPE_CHECKING:
    from qts.brokers import RehearsalStep
    from qts.config import Config, Setting

VenueArgument = Annotated[str, typer.Argument(metavar="VENUE", help="kis, upbit.")]
RehearsedSymbol = Annotated[
    str | None,
    typer.Option("--symbol", metavar="SYMBOL", help="What to order; by default a large one."),
]


def rehearse(
    venue: VenueArgument,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="Rehearse on a simulator; needs no key.")
    ] = False,
    symbol: RehearsedSymbol = None,
    fill: Annotated[
        bool, typer.Option("--fill", help="Also buy the smallest amount and sell it.")
    ] = False,
    yes: YesOption = False,
    config: ConfigOption = None,
) -> None:
    """Rehearse real orders at a venue, step by step; live trading needs it once a month.

    Reads balance, price and buying power, places the smallest order where it cannot fill, changes
    and cancels it, and compares the account with that of the start. It stops at the first
    surprise and withdraws what it placed. The transcript is in the home, in rehearsals/.

    Example: qts rehearse upbit --simulated --yes
    """
    check_venue(venue)
    if not yes and not sys.stdin.isatty():
        raise RefusedError("--yes is missing; without a terminal nobody can confirm the steps")
    settings = load_config(config)

    from qts.app import RehearsalOptions
    from qts.app import rehearse as run_rehearsal
    from qts.domain import SystemClock

    options = RehearsalOptions(symbol, simulated, fill)
    output = StepOutput(venue, yes=yes)
    try:
        path = run_steps(run_rehearsal(settings, venue, options, output, SystemClock()))
    except QtsError as error:
        if output.transcript is None or isinstance(error, RefusedError):
            raise
        raise OperationError(f"stopped: {error}; transcript {output.transcript}") from None
    typer.echo(f"Complete. Transcript: {path}")
    if simulated:
        typer.echo(f"This was the simulator. With your key: qts rehearse {venue}")
    else:
        typer.echo('Next: brokers.mode = "live" in the settings, and qts run')


def check_venue(name: str) -> None:
    from qts.venues import venue_names

    check_name("venue", name, venue_names())


class StepOutput:
    """Prints each step before and after it, and asks where a terminal can answer."""

    def __init__(self, venue: str, *, yes: bool) -> None:
        self.transcript: Path | None = None
        self._venue = venue
        self._yes = yes

    def began(self, account: str, environment: str, transcript: Path | None) -> None:
        self.transcript = transcript
        money = {"real": "REAL MONEY", "paper": "paper trading", "simulator": "a simulator"}
        typer.echo(f"{self._venue}, account {account}: {money.get(environment, environment)}")

    async def confirm(self, step: str, text: str) -> bool:
        typer.echo(f"{step:<8} {text}")
        return self._yes or await _ask("         Go on? [y/N] ")

    def done(self, step: RehearsalStep) -> None:
        if step.verdict == "skipped":
            typer.echo(f"{step.step:<8} {step.request}")
        typer.echo(f"         {step.verdict}: {step.answer}")


def run_steps(steps: Coroutine[Any, Any, Any]) -> Any:
    """Run steps on an event loop; SIGTERM and a closed terminal cancel them like Ctrl-C."""

    async def run() -> Any:
        task = asyncio.current_task()
        for number in (signal.SIGTERM, signal.SIGHUP):
            if task is not None:
                asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await steps

    from qts import telemetry

    telemetry.configure(telemetry.TelemetryConfig(log_level="error"))
    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        telemetry.shutdown()


async def _ask(question: str) -> bool:
    """Ask on the terminal while the event loop goes on: streams have to be answered."""
    typer.echo(question, nl=False, err=True)
    loop, answered = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), answered.set)
    try:
        await answered.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())
    return sys.stdin.readline().strip().lower() in ("y", "yes")


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
