"""`qts outbox relay`: move committed events to NATS or Kafka."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Annotated

import typer

from qts.cli.console import ConfigOption
from qts.domain import RefusedError, parse_duration


def relay(
    seconds: Annotated[
        str | None, typer.Option("--for", metavar="SPAN", help="Stop after this long, as in 60s.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Move committed events to the NATS or Kafka of the settings, until interrupted.

    Several may run at once. With one of them running, set outbox.run_relay = false elsewhere.

    Example: qts outbox relay --config qts.toml
    """
    from qts.app import open_database
    from qts.config import load
    from qts.outbox import open_relayed_bus

    limit_s = parse_duration(seconds) if seconds else None
    settings = load(config, os.environ)
    if settings.outbox.bus == "postgres":
        raise RefusedError('outbox.bus = "postgres" moves nothing; set it to "nats" or "kafka"')

    async def move() -> None:
        async with (
            open_database(settings) as database,
            open_relayed_bus(database, settings.outbox) as bus,
        ):
            moving = bus.relay()
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, moving.stop)
            if limit_s is not None:
                loop.call_later(limit_s, moving.stop)
            typer.echo(f"moving events to {settings.outbox.bus}")
            await moving.run()

    asyncio.run(move())
