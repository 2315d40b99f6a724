"""The event lanes: `qts ops degrade`, `qts ops dead-letters` and, under load, `qts dev lanes`."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from qts.cli.console import (
    AccountOption,
    ConfigOption,
    JsonFile,
    JsonFileOption,
    JsonOption,
    print_json,
    with_account,
    with_database,
)
from qts.cli.groups import command_group
from qts.domain import RefusedError, SystemClock, name_choices, parse_duration

if TYPE_CHECKING:
    from qts.events import DeadLetterAdmin, EngineStatus, Event, EventEngine, StoredDeadLetter

T = TypeVar("T")

AUTO = "auto"


def degrade(
    level: Annotated[
        str,
        typer.Argument(
            metavar="LEVEL",
            help="normal, p3_paused, p2_p3_paused, critical_only; auto: by the load.",
        ),
    ],
    account: AccountOption = None,
    config: ConfigOption = None,
) -> None:
    """Set the degradation level of the running QTS.

    It lasts until the run ends, or until auto returns to the level of the load.

    Example: qts ops degrade p3_paused
    """
    from qts.app import request_level
    from qts.events import DegradationLevel

    levels = {each.name.lower(): each for each in DegradationLevel}
    if level.lower() not in (*levels, AUTO):
        raise RefusedError(
            f"LEVEL is {level!r}; expected one of {name_choices(level.lower(), [*levels, AUTO])}"
        )
    chosen, now = levels.get(level.lower()), SystemClock().now()
    with_account(
        config, lambda database, key: request_level(database, key, chosen, now), account=account
    )
    typer.echo(f"requested {level.lower()}; the running QTS applies it, see qts top")


NumberArgument = Annotated[
    int, typer.Argument(metavar="NUMBER", help="The dead letter's number, from the list.")
]

DEAD_LETTER_SCHEMA = 8  # adds replay requests

dead_letters = command_group(
    "Events that used up their retries in the lanes.", "qts ops dead-letters list"
)


@dead_letters.command(name="list")
def list_letters(
    event_type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Only this event type.")
    ] = None,
    replayed: Annotated[
        bool, typer.Option("--replayed", help="Include those that were replayed.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of rows.")] = 50,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List dead letters, newest first.

    Example: qts ops dead-letters list --type FILL_CONFIRMED
    """
    letters = _with_admin(config, lambda admin: admin.find(limit, event_type, replayed))
    if as_json:
        print_json({"dead_letters": [_letter_row(letter) for letter in letters]})
    else:
        typer.echo("\n".join(map(_letter_line, letters)) or "no dead letters")


@dead_letters.command()
def show(number: NumberArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show one dead letter with its event.

    Example: qts ops dead-letters show 7
    """
    import msgspec

    letter = _with_admin(config, lambda admin: admin.show(number))
    if as_json:
        print_json(_letter_row(letter))
        return
    for name, value in _letter_row(letter).items():
        text = msgspec.json.encode(value).decode() if isinstance(value, dict) else value
        typer.echo(f"{name:<16} {'-' if text is None else text}")


@dead_letters.command()
def replay(
    number: NumberArgument,
    wait: Annotated[
        str, typer.Option(metavar="TIME", help="How long to wait for a running engine.")
    ] = "5s",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Request that the engine running on this database publishes a dead letter again.

    The request stays until an engine takes it.

    Example: qts ops dead-letters replay 7
    """
    seconds = parse_duration(wait)

    async def request(admin: DeadLetterAdmin) -> StoredDeadLetter:
        await admin.request_replay(number)
        return await admin.wait_replayed(number, seconds)

    letter = _with_admin(config, request)
    if as_json:
        print_json(_letter_row(letter))
    elif letter.state == "replayed":
        typer.echo(f"dead letter {number} was replayed")
    elif letter.state == "asked":
        typer.echo(
            f"replay of dead letter {number} is requested; no engine took it within {wait}, "
            "the next one that runs on this database will"
        )
    else:
        raise RefusedError(
            f"dead letter {number} was refused by the engine; its log has the reason"
        )


@dead_letters.command()
def purge(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="TIME", help="Only older ones, as in 30d.")
    ] = "30d",
    dead: Annotated[
        bool, typer.Option("--dead", help="Include those that were never replayed.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete old dead letters that were replayed; with --dead, all old ones.

    Example: qts ops dead-letters purge --older-than 90d
    """
    seconds = parse_duration(older_than)
    count = _with_admin(config, lambda admin: admin.purge(seconds, dead))
    if as_json:
        print_json({"purged": count})
    else:
        typer.echo(f"purged {count} dead letters")


def _with_admin(config: Path | None, query: Callable[[DeadLetterAdmin], Awaitable[T]]) -> T:
    from qts.events import DeadLetterAdmin

    return with_database(
        config, lambda database: query(DeadLetterAdmin(database)), DEAD_LETTER_SCHEMA
    )


def _letter_row(letter: StoredDeadLetter) -> dict[str, object]:
    import msgspec

    return {"state": letter.state, **msgspec.structs.asdict(letter)}


def _letter_line(letter: StoredDeadLetter) -> str:
    return (
        f"{letter.number:>6}  {letter.died_at:%Y-%m-%d %H:%M:%S}  {letter.state:<8}  "
        f"P{letter.priority}  {letter.event_type}  {letter.handler}  {letter.error}"
    )


_INTERVAL_S = 0.5


def lanes(
    duration: Annotated[
        str, typer.Option("--duration", "--for", metavar="TIME", help="How long to run.")
    ] = "10s",
    json_file: JsonFileOption = None,
    config: ConfigOption = None,
) -> int:
    """Flood the event lanes and show them live.

    Shows depth, latency and the merged, dropped and sampled events of P0 to P3.

    Example: qts dev lanes --duration 5s
    """
    from qts.config import resolve
    from qts.events import EventEngine

    seconds = parse_duration(duration)
    output = JsonFile(json_file)
    engine = EventEngine(resolve(config, os.environ).config.events)
    _register(engine)
    with engine, _flood(engine):
        _show(engine, seconds, quiet=output.prints)
    status = engine.status()
    output.write(status)
    return 0 if all(lane.balanced for lane in status.lanes.values()) else 1


def panel(status: EngineStatus, rates: dict[str, float]) -> list[str]:
    """Return the status of the lanes as a table."""
    lines = [
        f"{'Lane':5}{'Depth':>9}{'Max':>9}  {'Status':9}{'p99 ms':>10}{'events/s':>12}"
        f"{'merged':>11}{'dropped':>9}{'sampled':>11}{'dead':>6}"
    ]
    for name, lane in status.lanes.items():
        state = "PAUSED" if lane.paused else {"NORMAL": "OK"}.get(lane.pressure, lane.pressure)
        lines.append(
            f"{name:5}{lane.depth:9,}{lane.capacity:9,}  {state:9}{lane.total.p99:10.2f}"
            f"{rates.get(name, 0):12,.0f}{lane.collapsed:11,}{lane.dropped:9,}"
            f"{lane.sampled:11,}{lane.dead:6,}"
        )
    lines.append(f"{status.level}; dead letters: {status.dead_letters}")
    return lines


def _show(engine: EventEngine, seconds: float, quiet: bool) -> None:
    before, began = engine.status(), time.monotonic()
    last, shown = began, 0
    in_place = sys.stdout.isatty()
    while time.monotonic() - began < seconds:
        time.sleep(min(_INTERVAL_S, seconds))
        now, status = time.monotonic(), engine.status()
        rates = {
            name: (lane.handled - before.lanes[name].handled) / (now - last)
            for name, lane in status.lanes.items()
        }
        before, last = status, now
        if quiet:
            continue
        lines = panel(status, rates)
        typer.echo((f"\x1b[{shown}A" if in_place and shown else "") + "\n".join(lines))
        shown = len(lines)


def _register(engine: EventEngine) -> None:
    engine.on("FILL_*", ignore)
    engine.on("PRICE_TICK", ignore)
    engine.on("STRATEGY_EVALUATE", compute)
    engine.on("LOG_WRITE", sleep)


# Module-level functions: an isolated lane imports its handlers by name.
def ignore(_event: Event) -> None:
    """Do nothing."""


def compute(_event: Event) -> None:
    sum(number * number for number in range(20_000))


def sleep(_event: Event) -> None:
    time.sleep(0.0005)


@contextlib.contextmanager
def _flood(engine: EventEngine) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=_publish, args=(engine, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _publish(engine: EventEngine, stop: threading.Event) -> None:
    from qts.events import payloads as p

    fill = p.FillPayload(order_id="1", symbol="005930", filled_qty=1, filled_price=1, filled_time=1)
    ticks = [
        engine.new_event("PRICE_TICK", p.PriceTick(symbol=f"{n:06}", price=1.0), "demo")
        for n in range(500)
    ]
    evaluations = [
        engine.new_event("STRATEGY_EVALUATE", p.StrategyEvaluate(strategy_type=f"S{n}"), "demo")
        for n in range(50)
    ]
    line = engine.new_event("LOG_WRITE", p.LogWrite(message="demo"), "demo")
    while not stop.wait(0.01):
        engine.emit("FILL_CONFIRMED", fill, "demo")
        engine.publish_many(ticks)
        engine.publish_many(evaluations)
        engine.publish_many([line] * 1000)
