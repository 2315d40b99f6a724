"""`qts dev simulate`: a venue simulator with a moving market."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qts.cli.groups import command_group
from qts.domain import RefusedError

if TYPE_CHECKING:
    from qts.simulators import MarketConfig, RequestLimits, Simulator

app = command_group(
    "A server that speaks a venue's protocol, with its limits and errors and a moving market.",
    "qts dev simulate kis --port 9443 --seed 7 --speed 10",
    "Run a venue simulator: kis, upbit",
)

Port = Annotated[int, typer.Option("--port", metavar="N", help="0: any free port.")]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Same seed, same market.")]
Speed = Annotated[
    float, typer.Option("--speed", metavar="X", help="Market seconds per second, 1 to 1000.")
]
Symbols = Annotated[int, typer.Option("--symbols", metavar="N", help="Number of listed symbols.")]
Start = Annotated[
    str | None,
    typer.Option(
        "--start",
        metavar="TIME",
        help="Start of the market's clock, Korean time: 2026-11-16T09:00. "
        "Default: the next opening (kis), now (upbit).",
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
            help="Requests of a key per second, minute and day: 18/1000/100000. 0: unlimited.",
        ),
    ] = None,
    limits_clock: Annotated[
        str,
        typer.Option("--limits-clock", metavar="wall|market", help="Clock of the limits."),
    ] = "wall",
    random_refusals: Refusals = 0.0,
    always_open: Annotated[
        bool, typer.Option("--always-open", help="Trade at any hour, from this moment on.")
    ] = False,
) -> None:
    """Run the KIS simulator until Ctrl-C.

    Example: qts dev simulate kis --port 9443 --limits 20/1000/100000
    """
    from qts.simulators import KisSimulator, KisSimulatorConfig

    config = _convert(
        KisSimulatorConfig,
        host=host,
        port=port,
        paper=paper,
        limits=_limits(limits),
        limits_clock=limits_clock,
        random_refusals=random_refusals,
        market=_market(
            seed=seed,
            speed=speed,
            symbols=symbols,
            start=_start(start),
            always_open=always_open,
        ),
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

    Example: qts dev simulate upbit --port 8443 --speed 10
    """
    from qts.simulators import UpbitSimulator, UpbitSimulatorConfig

    config = _convert(
        UpbitSimulatorConfig,
        host=host,
        port=port,
        random_refusals=random_refusals,
        market=_market(seed=seed, speed=speed, symbols=symbols, start=_start(start), suspended=0),
    )
    key = config.keys[0]
    lines = (
        f"access key {key.access_key}",
        f"secret key {key.secret_key}",
        f"account    {key.krw:,} won",
    )
    _run(_serve(UpbitSimulator(config), lines))


def _convert(kind: Any, **values: Any) -> Any:
    """Return a settings struct of the options; refuse a value out of bounds by its option."""
    import msgspec

    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        option = where.strip("`").removeprefix("$.").rpartition(".")[2].replace("_", "-")
        raise RefusedError(f"--{option or 'option'}: {what[0].lower()}{what[1:]}") from None


def _market(**values: Any) -> MarketConfig:
    from qts.simulators import MarketConfig

    market: MarketConfig = _convert(MarketConfig, **values)
    return market


def _start(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        raise RefusedError(f"--start {text}: expected a time such as 2026-11-16T09:00") from None


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
            serving.result()  # raises what ended the market
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
    typer.echo("stopped")
