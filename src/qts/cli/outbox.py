"""`qts outbox`: look at the durable bus, and deal with its dead letters."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from uuid import UUID

import msgspec
import typer

from qts.cli.console import ConfigOption, JsonOption, print_json, with_database
from qts.cli.outbox_relay import relay
from qts.domain import RefusedError, parse_duration

if TYPE_CHECKING:
    from qts.database import Database
    from qts.outbox import EventRow

T = TypeVar("T")

StreamOption = Annotated[str | None, typer.Option("--stream", help="Only this stream.")]
EventArgument = Annotated[str, typer.Argument(metavar="EVENT_ID", help="The event's id.")]

OLDEST_SCHEMA = 2  # the one that brought the bus

app = typer.Typer(
    help="The durable bus: what waits, what died, and what to do about it.",
    epilog="Example: qts outbox status",
    no_args_is_help=True,
)
app.command()(relay)


@app.command()
def status(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show how much waits, is in hand and is dead in each stream.

    Example: qts outbox status --json
    """
    from qts.outbox import OutboxConfig, paused_streams, stream_depths

    async def ask(database: Database) -> tuple[Any, set[str]]:
        return await stream_depths(database, OutboxConfig().streams), await paused_streams(database)

    found, waiting = _at_bus(config, ask)
    if as_json:
        rows = [
            {**msgspec.to_builtins(depth), "paused": depth.stream in waiting} for depth in found
        ]
        print_json({"streams": rows})
        return
    typer.echo(f"{'stream':<28}{'pending':>9}{'in hand':>9}{'dead':>7}{'oldest':>10}")
    for depth in found:
        note = "  paused" if depth.stream in waiting else ""
        typer.echo(
            f"{depth.stream:<28}{depth.pending:>9}{depth.processing:>9}{depth.dead:>7}"
            f"{depth.oldest_pending_s:>8.1f} s{note}"
        )


@app.command(name="list")
def list_events(
    stream: StreamOption = None,
    status: Annotated[
        str | None, typer.Option(help="PENDING, PROCESSING, DONE or DEAD only.")
    ] = None,
    event_type: Annotated[str | None, typer.Option("--type", help="Only this type.")] = None,
    aggregate: Annotated[str | None, typer.Option(help="Only this aggregate id.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Events at most.")] = 50,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List events, the youngest first.

    Example: qts outbox list --status DEAD --stream everbit.trade.command
    """
    from qts.outbox import OutboxAdmin

    wanted = status.upper() if status else None
    if wanted not in (None, "PENDING", "PROCESSING", "DONE", "DEAD"):
        raise RefusedError(f"--status {status}: must be PENDING, PROCESSING, DONE or DEAD")
    rows = _at_bus(
        config,
        lambda database: OutboxAdmin(database).find(
            stream=stream,
            status=wanted,
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
    """Show one event with all of its columns.

    Example: qts outbox show 0198c0de-0000-7000-8000-000000000001
    """
    from qts.outbox import OutboxAdmin

    row = _at_bus(config, lambda database: OutboxAdmin(database).show(_uuid(event_id)))
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
        str | None, typer.Option("--stream", help="All dead letters of this stream instead.")
    ] = None,
    outcome_checked: Annotated[
        bool, typer.Option(help="You looked: an UNKNOWN outcome did not take effect.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a dead letter new attempts.

    Example: qts outbox requeue 0198c0de-0000-7000-8000-000000000001
    """
    from qts.outbox import OutboxAdmin

    if (event_id is None) == (stream is None):
        raise RefusedError("name one EVENT_ID, or --stream for all of its dead letters")

    async def ask(database: Database) -> int:
        desk = OutboxAdmin(database)
        if stream is not None:
            return await desk.requeue_all(stream)
        await desk.requeue(_uuid(event_id or ""), outcome_checked=outcome_checked)
        return 1

    count = _at_bus(config, ask)
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

    Example: qts outbox edit 0198c0de-0000-7000-8000-000000000001 --payload '{"price": "100"}'
    """
    from qts.outbox import OutboxAdmin

    text = sys.stdin.read() if payload == "-" else payload
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise RefusedError(f"--payload is not JSON: {error}") from None
    row = _at_bus(config, lambda database: OutboxAdmin(database).edit(_uuid(event_id), value))
    if as_json:
        print_json(row)
    else:
        typer.echo(f"edited {row.event_id}; requeue it when it is right")


@app.command()
def purge(
    older_than: Annotated[
        str, typer.Option(metavar="SPAN", help="Only what ended longer ago, as in 30d.")
    ],
    dead: Annotated[
        bool, typer.Option("--dead", help="Dead letters instead of handled events.")
    ] = False,
    stream: StreamOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget handled events by whole days, or dead letters.

    Example: qts outbox purge --older-than 90d
    """
    from qts.outbox import OutboxAdmin

    seconds = parse_duration(older_than)
    days = int(seconds // 86_400)
    if not dead and (stream is not None or days < 1):
        raise RefusedError(
            "handled events go by whole days of all streams: --older-than 1d or more"
        )

    async def ask(database: Database) -> dict[str, Any]:
        desk = OutboxAdmin(database)
        if dead:
            return {"dead_letters": await desk.purge_dead(seconds, stream)}
        return {"days": await desk.purge_done(days)}

    gone = _at_bus(config, ask)
    if as_json:
        print_json(gone)
    elif dead:
        typer.echo(f"purged {gone['dead_letters']} dead letters")
    else:
        typer.echo(f"purged {len(gone['days'])} days")


@app.command()
def tail(
    stream: StreamOption = None,
    seconds: Annotated[
        str | None, typer.Option("--for", metavar="SPAN", help="Stop after this long, as in 60s.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show events as they come and move, until interrupted.

    Example: qts outbox tail --stream everbit.trade.event --for 60s
    """
    from qts.outbox import OutboxAdmin

    limit_s = parse_duration(seconds) if seconds else None

    async def ask(database: Database) -> None:
        try:
            async with asyncio.timeout(limit_s):
                async for row in OutboxAdmin(database).tail(stream):
                    typer.echo(msgspec.json.encode(row).decode() if as_json else _line(row))
        except TimeoutError:
            pass

    _at_bus(config, ask)


@app.command()
def pause(
    stream: Annotated[str, typer.Argument(help="The stream.")], config: ConfigOption = None
) -> None:
    """Let no worker take events of a stream until it is resumed; kept across restarts.

    Example: qts outbox pause everbit.trade.command
    """
    from qts.outbox import OutboxConfig, PostgresBus

    _at_bus(config, lambda db: PostgresBus(db, OutboxConfig().streams).pause(stream))
    typer.echo(f"paused {stream}")


@app.command()
def resume(
    stream: Annotated[str, typer.Argument(help="The stream.")], config: ConfigOption = None
) -> None:
    """Let workers take events of a stream again.

    Example: qts outbox resume everbit.trade.command
    """
    from qts.outbox import OutboxConfig, PostgresBus

    _at_bus(config, lambda db: PostgresBus(db, OutboxConfig().streams).resume(stream))
    typer.echo(f"resumed {stream}")


@app.command()
def bench(
    events: Annotated[int, typer.Option(min=100, max=1_000_000, help="Events per drain.")] = 20_000,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure publishing, draining and latency on this database; leaves handled events behind.

    Example: qts outbox bench --events 20000
    """
    from qts.verify import measure_outbox as measure

    def progress(text: str) -> None:
        typer.echo(text + " ...", err=True)

    found = _at_bus(config, lambda database: measure(database, events, progress))
    if as_json:
        print_json(found)
        return
    for name, value in msgspec.structs.asdict(found).items():
        typer.echo(
            f"{name:<24}{value:>12,.2f}" if isinstance(value, float) else f"{name:<24}{value:>12,}"
        )


def _at_bus(config: Path | None, ask: Callable[[Database], Awaitable[T]]) -> T:
    return with_database(config, ask, OLDEST_SCHEMA)


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise RefusedError(f"{text!r} is not an event id; it looks like a UUID") from None


def _line(row: EventRow) -> str:
    error = f"  {row.last_error_code}: {row.last_error_message}" if row.last_error_code else ""
    return (
        f"{row.updated_at:%Y-%m-%d %H:%M:%S}  {row.event_id}  {row.status:<10}  {row.stream}  "
        f"{row.event_type}  {row.aggregate_type}/{row.aggregate_id}  "
        f"{row.attempt_count}/{row.max_attempts}{error}"
    )
