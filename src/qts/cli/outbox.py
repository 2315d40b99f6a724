"""`qts ops outbox`: inspect the durable message bus, repair dead letters, run the relay."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from qts.cli.console import (
    ConfigOption,
    DurationOption,
    JsonOption,
    parse_uuid,
    print_json,
    with_database,
)
from qts.cli.groups import command_group
from qts.cli.verify import EventsOption, outbox
from qts.domain import RefusedError, parse_duration

if TYPE_CHECKING:
    from uuid import UUID

    from qts.database import Database
    from qts.outbox import EventRow

T = TypeVar("T")

StreamOption = Annotated[
    str | None, typer.Option("--stream", metavar="STREAM", help="Only this stream.")
]
StreamArgument = Annotated[str, typer.Argument(metavar="STREAM", help="The stream.")]
EventArgument = Annotated[str, typer.Argument(metavar="EVENT_ID", help="The event's id.")]

OLDEST_SCHEMA = 2  # adds the outbox

app = command_group("Durable message bus: status, dead letters, relay.", "qts ops outbox status")


@app.command()
def status(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show pending, in-flight and dead events of each stream.

    Example: qts ops outbox status --json
    """
    import msgspec

    from qts.outbox import OutboxConfig, paused_streams, stream_depths

    async def read(database: Database) -> tuple[Any, set[str]]:
        return await stream_depths(database, OutboxConfig().streams), await paused_streams(database)

    found, paused = _with_database(config, read)
    if as_json:
        rows = [{**msgspec.to_builtins(depth), "paused": depth.stream in paused} for depth in found]
        print_json({"streams": rows})
        return
    typer.echo(f"{'stream':<28}{'pending':>9}{'in flight':>11}{'dead':>7}{'oldest':>10}")
    for depth in found:
        note = "  paused" if depth.stream in paused else ""
        typer.echo(
            f"{depth.stream:<28}{depth.pending:>9}{depth.processing:>11}{depth.dead:>7}"
            f"{depth.oldest_pending_s:>8.1f} s{note}"
        )


@app.command(name="list")
def list_events(
    stream: StreamOption = None,
    status: Annotated[
        str | None,
        typer.Option(metavar="STATUS", help="PENDING, PROCESSING, DONE or DEAD only."),
    ] = None,
    event_type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Only this type.")
    ] = None,
    aggregate: Annotated[
        str | None, typer.Option(metavar="ID", help="Only this aggregate.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of rows.")] = 50,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List events, newest first.

    Example: qts ops outbox list --status DEAD --stream everbit.trade.command
    """
    from qts.outbox import OutboxAdmin

    only = status.upper() if status else None
    if only not in (None, "PENDING", "PROCESSING", "DONE", "DEAD"):
        raise RefusedError(f"--status {status}: must be PENDING, PROCESSING, DONE or DEAD")
    rows = _with_database(
        config,
        lambda database: OutboxAdmin(database).find(
            stream=stream,
            status=only,
            event_type=event_type,
            aggregate_id=aggregate,
            limit=limit,
        ),
    )
    if as_json:
        print_json({"events": rows})
    else:
        typer.echo("\n".join(map(_line, rows)) or "no such events")


@app.command()
def show(event_id: EventArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show one event with all columns.

    Example: qts ops outbox show 0198c0de-0000-7000-8000-000000000001
    """
    import msgspec

    from qts.outbox import OutboxAdmin

    row = _with_database(config, lambda database: OutboxAdmin(database).show(_uuid(event_id)))
    if as_json:
        print_json(row)
        return
    for name, value in msgspec.structs.asdict(row).items():
        text = msgspec.json.encode(value).decode() if isinstance(value, dict) else value
        typer.echo(f"{name:<19}{'-' if text is None else text}")


@app.command()
def requeue(
    event_id: Annotated[str | None, typer.Argument(metavar="EVENT_ID", help="One event.")] = None,
    stream: Annotated[
        str | None,
        typer.Option("--stream", metavar="STREAM", help="All dead letters of this stream."),
    ] = None,
    outcome_checked: Annotated[
        bool,
        typer.Option(
            "--outcome-checked/--no-outcome-checked",
            show_default=False,
            help="You checked that an UNKNOWN outcome had no effect at the venue.",
        ),
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Requeue a dead letter with new attempts.

    Example: qts ops outbox requeue 0198c0de-0000-7000-8000-000000000001
    """
    from qts.outbox import OutboxAdmin

    if (event_id is None) == (stream is None):
        raise RefusedError("name one EVENT_ID, or --stream for all of its dead letters")

    async def requeue_events(database: Database) -> int:
        admin = OutboxAdmin(database)
        if stream is not None:
            return await admin.requeue_all(stream)
        await admin.requeue(_uuid(event_id or ""), outcome_checked=outcome_checked)
        return 1

    count = _with_database(config, requeue_events)
    if as_json:
        print_json({"requeued": count})
    else:
        typer.echo(f"requeued {count} event{'s' if count != 1 else ''}")


@app.command()
def edit(
    event_id: EventArgument,
    payload: Annotated[
        str, typer.Option(metavar="JSON", help="The new payload; - reads standard input.")
    ],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replace the payload of a dead letter; requeue it afterwards.

    Example: qts ops outbox edit 0198c0de-0000-7000-8000-000000000001 --payload '{"price": "100"}'
    """
    import msgspec

    from qts.outbox import OutboxAdmin

    text = sys.stdin.read() if payload == "-" else payload
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise RefusedError(f"--payload is not JSON: {error}") from None
    row = _with_database(
        config, lambda database: OutboxAdmin(database).edit(_uuid(event_id), value)
    )
    if as_json:
        print_json(row)
    else:
        typer.echo(f"edited {row.event_id}; requeue it next")


@app.command()
def purge(
    older_than: Annotated[
        str,
        typer.Option(metavar="TIME", help="Only events that ended earlier than this, as in 30d."),
    ],
    dead: Annotated[
        bool, typer.Option("--dead", help="Dead letters instead of handled events.")
    ] = False,
    stream: StreamOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete handled events by whole days, or dead letters.

    Example: qts ops outbox purge --older-than 90d
    """
    from qts.outbox import OutboxAdmin

    seconds = parse_duration(older_than)
    days = int(seconds // 86_400)
    if not dead and (stream is not None or days < 1):
        raise RefusedError(
            "handled events are deleted by whole days of all streams: --older-than 1d or more"
        )

    async def purge_events(database: Database) -> dict[str, Any]:
        admin = OutboxAdmin(database)
        if dead:
            return {"dead_letters": await admin.purge_dead(seconds, stream)}
        return {"days": await admin.purge_done(days)}

    purged = _with_database(config, purge_events)
    if as_json:
        print_json(purged)
    elif dead:
        typer.echo(f"purged {purged['dead_letters']} dead letters")
    else:
        typer.echo(f"purged {len(purged['days'])} days")


@app.command()
def tail(
    stream: StreamOption = None,
    duration: DurationOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print events as they are added or change, until Ctrl-C.

    Example: qts ops outbox tail --stream everbit.trade.event --duration 60s
    """
    import msgspec

    from qts.outbox import OutboxAdmin

    limit_s = parse_duration(duration) if duration else None

    async def follow(database: Database) -> None:
        try:
            async with asyncio.timeout(limit_s):
                async for row in OutboxAdmin(database).tail(stream):
                    typer.echo(msgspec.json.encode(row).decode() if as_json else _line(row))
        except TimeoutError:
            pass

    _with_database(config, follow)


@app.command()
def pause(stream: StreamArgument, config: ConfigOption = None) -> None:
    """Pause a stream: no worker claims its events until it is resumed, also after a restart.

    Example: qts ops outbox pause everbit.trade.command
    """
    from qts.outbox import OutboxConfig, PostgresBus

    _with_database(config, lambda db: PostgresBus(db, OutboxConfig().streams).pause(stream))
    typer.echo(f"paused {stream}")


@app.command()
def resume(stream: StreamArgument, config: ConfigOption = None) -> None:
    """Resume a paused stream.

    Example: qts ops outbox resume everbit.trade.command
    """
    from qts.outbox import OutboxConfig, PostgresBus

    _with_database(config, lambda db: PostgresBus(db, OutboxConfig().streams).resume(stream))
    typer.echo(f"resumed {stream}")


@app.command()
def relay(duration: DurationOption = None, config: ConfigOption = None) -> None:
    """Move committed events to the NATS or Kafka of the settings, until Ctrl-C.

    Several relays may run at once. Set outbox.run_relay = false where `qts run` should not.

    Example: qts ops outbox relay --config qts.toml
    """
    from qts.app import open_database
    from qts.config import load
    from qts.outbox import open_relayed_bus

    limit_s = parse_duration(duration) if duration else None
    settings = load(config, os.environ)
    if settings.outbox.bus == "postgres":
        raise RefusedError('outbox.bus = "postgres" needs no relay; set it to "nats" or "kafka"')

    async def move() -> None:
        async with (
            open_database(settings) as database,
            open_relayed_bus(database, settings.outbox) as bus,
        ):
            relay = bus.relay()
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, relay.stop)
            if limit_s is not None:
                loop.call_later(limit_s, relay.stop)
            typer.echo(f"moving events to {settings.outbox.bus}")
            await relay.run()

    asyncio.run(move())


@app.command(name="bench", hidden=True)
def _bench(
    events: EventsOption = 20_000, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Measure the outbox; the old name of `qts dev verify outbox`.

    Example: qts dev verify outbox --events 20000
    """
    outbox(events, config, as_json)


def _with_database(config: Path | None, query: Callable[[Database], Awaitable[T]]) -> T:
    return with_database(config, query, OLDEST_SCHEMA)


def _uuid(text: str) -> UUID:
    return parse_uuid(text, "an event id; expected a UUID")


def _line(row: EventRow) -> str:
    error = f"  {row.last_error_code}: {row.last_error_message}" if row.last_error_code else ""
    return (
        f"{row.updated_at:%Y-%m-%d %H:%M:%S}  {row.event_id}  {row.status:<10}  {row.stream}  "
        f"{row.event_type}  {row.aggregate_type}/{row.aggregate_id}  "
        f"{row.attempt_count}/{row.max_attempts}{error}"
    )
