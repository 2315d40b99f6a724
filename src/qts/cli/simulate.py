"""`qts simulate`: a venue on this machine, with a moving market inside."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from qts.domain import RefusedError

if TYPE_CHECKING:
    from qts.simulators import MarketConfig, RequestLimits, Simulator

app = typer.Typer(
    help="Run a simulated venue: its real paths, limits and errors, and a market that moves.",
    epilog="Example: qts simulate kis --port 9443 --seed 7 --speed 10",
    no_args_is_help=True,
)

Port = Annotated[int, typer.Option("--port", metavar="N", help="0 takes any free port.")]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Same seed, same market.")]
Speed = Annotated[
    float, typer.Option("--speed", metavar="X", help="Market seconds in a second, 1 to 1000.")
]
Symbols = Annotated[int, typer.Option("--symbols", metavar="N", help="Symbols that are listed.")]
Start = Annotated[
    str | None,
    typer.Option(
        "--start",
        metavar="MOMENT",
        help="Where the market's clock begins, Korean time: 2026-11-16T09:00. "
        "Unset: the next opening bell (kis), now (upbit).",
    ),
]
Refusals = Annotated[
    float,
    typer.Option(
        "--random-refusals", metavar="SHARE", help="Share of requests refused below the limit."
    ),
]


@app.command()
def kis(
    host: Host = "127.0.0.1",
    port: Port = 0,
    seed: Seed = 1,
    speed: Speed = 1.0,
    symbols: Symbols = 2500,
    start: Start = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper host: V tr_ids, 1 request a second.")
    ] = False,
    limits: Annotated[
        str | None,
        typer.Option(
            "--limits",
            metavar="S/M/D",
            help="Requests a key may send in a second, a minute, a day: 18/1000/100000. 0: any.",
        ),
    ] = None,
    limits_clock: Annotated[
        str,
        typer.Option("--limits-clock", metavar="wall|market", help="Whose seconds limits count."),
    ] = "wall",
    random_refusals: Refusals = 0.0,
) -> None:
    """Run the KIS simulator until Ctrl-C.

    Example: qts simulate kis --port 9443 --limits 20/1000/100000
    """
    from qts.simulators import KisSimulator, KisSimulatorConfig  # a web server: not before needed

    config = _checked(
        KisSimulatorConfig,
        host=host,
        port=port,
        paper=paper,
        limits=_limits(limits),
        limits_clock=limits_clock,
        random_refusals=random_refusals,
        market=_market(seed=seed, speed=speed, symbols=symbols, start=_moment(start)),
    )
    key = config.keys[0]
    lines = (
        f"app key    {key.app_key}",
        f"app secret {key.app_secret}",
        f"account    {key.account}, HTS id {key.hts_id}, {key.cash:,} won",
    )
    _run(_serve(KisSimulator(config), lines))


@app.command()
def upbit(
    host: Host = "127.0.0.1",
    port: Port = 0,
    seed: Seed = 1,
    speed: Speed = 1.0,
    symbols: Symbols = 200,
    start: Start = None,
    random_refusals: Refusals = 0.0,
) -> None:
    """Run the Upbit simulator until Ctrl-C.

    Example: qts simulate upbit --port 8443 --speed 10
    """
    from qts.simulators import UpbitSimulator, UpbitSimulatorConfig

    config = _checked(
        UpbitSimulatorConfig,
        host=host,
        port=port,
        random_refusals=random_refusals,
        market=_market(seed=seed, speed=speed, symbols=symbols, start=_moment(start), suspended=0),
    )
    key = config.keys[0]
    lines = (
        f"access key {key.access_key}",
        f"secret key {key.secret_key}",
        f"account    {key.krw:,} won",
    )
    _run(_serve(UpbitSimulator(config), lines))


def _checked(kind: Any, **values: Any) -> Any:
    """A settings struct from options; a value out of bounds is refused by its name."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        option = where.strip("`").removeprefix("$.").rpartition(".")[2].replace("_", "-")
        raise RefusedError(f"--{option or 'option'}: {what[0].lower()}{what[1:]}") from None


def _market(**values: Any) -> MarketConfig:
    from qts.simulators import MarketConfig

    market: MarketConfig = _checked(MarketConfig, **values)
    return market


def _moment(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        raise RefusedError(f"--start {text}: expected a moment such as 2026-11-16T09:00") from None


def _limits(text: str | None) -> RequestLimits | None:
    from qts.simulators import RequestLimits

    if text is None:
        return None
    parts = text.split("/")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        raise RefusedError(
            f"--limits {text}: expected requests a second, a minute and a day, as 18/1000/100000"
        )
    second, minute, day = map(int, parts)
    return RequestLimits(second=second, minute=minute, day=day)


def _run(work: Coroutine[Any, Any, None]) -> None:
    import uvloop

    uvloop.run(work)


async def _serve(simulator: Simulator, lines: tuple[str, ...]) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with simulator:
        typer.echo(f"{simulator.name} simulator  {simulator.url}  {simulator.ws_url}")
        for line in lines:
            typer.echo(line)
        typer.echo(f"control    {simulator.url}/_control/stats; Ctrl-C stops")
        serving = asyncio.create_task(simulator.serve())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if serving.done():
            serving.result()  # a bug in the market: told, not swallowed
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
    typer.echo("stopped")
