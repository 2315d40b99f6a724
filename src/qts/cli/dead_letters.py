"""`qts dead-letters`: events whose handler gave up, kept in the database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import typer

from qts.cli.console import ConfigOption, JsonOption, print_json, with_database
from qts.domain import RefusedError, parse_duration

if TYPE_CHECKING:
    from qts.events import DeadLetterAdmin, StoredDeadLetter

T = TypeVar("T")

NumberArgument = Annotated[int, typer.Argument(metavar="NUMBER", help="The letter's number.")]

OLDEST_SCHEMA = 8  # the one that lets a replay be asked for

app = typer.Typer(
    help="Events whose handler gave up: look, publish again, purge.",
    epilog="Example: qts dead-letters list",
    no_args_is_help=True,
)


@app.command(name="list")
def list_letters(
    event_type: Annotated[str | None, typer.Option("--type", help="Only this type.")] = None,
    replayed: Annotated[
        bool, typer.Option("--replayed", help="Also those published again.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Letters at most.")] = 50,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List dead letters, the newest first.

    Example: qts dead-letters list --type FILL_CONFIRMED
    """
    letters = _at_desk(config, lambda desk: desk.find(limit, event_type, replayed))
    if as_json:
        print_json({"dead_letters": [_row(letter) for letter in letters]})
    else:
        typer.echo("\n".join(map(_line, letters)) or "no dead letters")


@app.command()
def show(number: NumberArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show one dead letter with its event.

    Example: qts dead-letters show 7
    """
    letter = _at_desk(config, lambda desk: desk.show(number))
    if as_json:
        print_json(_row(letter))
        return
    for name, value in _row(letter).items():
        text = msgspec.json.encode(value).decode() if isinstance(value, dict) else value
        typer.echo(f"{name:<16} {'-' if text is None else text}")


@app.command()
def replay(
    number: NumberArgument,
    wait: Annotated[
        str, typer.Option(metavar="SPAN", help="How long to wait for an engine to take it.")
    ] = "5s",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask for a dead letter to be published again by the engine that runs on this database.

    It stays asked for until an engine takes it.

    Example: qts dead-letters replay 7
    """
    seconds = parse_duration(wait)

    async def ask(desk: DeadLetterAdmin) -> StoredDeadLetter:
        await desk.ask(number)
        return await desk.taken(number, seconds)

    letter = _at_desk(config, ask)
    if as_json:
        print_json(_row(letter))
    elif letter.state == "replayed":
        typer.echo(f"dead letter {number} was published again")
    elif letter.state == "asked":
        typer.echo(
            f"dead letter {number} is asked for, but no engine took it in {wait}; "
            "the next one that runs on this database will"
        )
    else:
        raise RefusedError(f"dead letter {number} was refused by the engine; its log says why")


@app.command()
def purge(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="SPAN", help="Only older ones, as in 30d.")
    ] = "30d",
    dead: Annotated[
        bool, typer.Option("--dead", help="Also those that were never published again.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete old dead letters that were published again; with --dead, all old ones.

    Example: qts dead-letters purge --older-than 90d
    """
    seconds = parse_duration(older_than)
    gone = _at_desk(config, lambda desk: desk.purge(seconds, dead))
    if as_json:
        print_json({"purged": gone})
    else:
        typer.echo(f"purged {gone} dead letters")


def _at_desk(config: Path | None, ask: Callable[[DeadLetterAdmin], Awaitable[T]]) -> T:
    from qts.events import DeadLetterAdmin

    return with_database(config, lambda database: ask(DeadLetterAdmin(database)), OLDEST_SCHEMA)


def _row(letter: StoredDeadLetter) -> dict[str, object]:
    return {"state": letter.state, **msgspec.structs.asdict(letter)}


def _line(letter: StoredDeadLetter) -> str:
    return (
        f"{letter.number:>6}  {letter.died_at:%Y-%m-%d %H:%M:%S}  {letter.state:<8}  "
        f"P{letter.priority}  {letter.event_type}  {letter.handler}  {letter.error}"
    )
