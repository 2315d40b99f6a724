"""`qts rehearse`: the smallest orders at a venue, step by step, before a run trades there."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qts.cli.console import ConfigOption, YesOption, load_config
from qts.domain import OperationError, QtsError, RefusedError, check_name

if TYPE_CHECKING:
    from qts.brokers import RehearsalStep

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
