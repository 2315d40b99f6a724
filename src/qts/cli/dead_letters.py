"""`qts ops dead-letters`: events of the lanes that used up their retries, kept in the database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from qts.cli.console import ConfigOption, JsonOption, print_json, with_database
from qts.cli.groups import command_group
from qts.domain import RefusedError, parse_duration

if TYPE_CHECKING:
    from qts.events import DeadLetterAdmin, StoredDeadLetter

T = TypeVar("T")

NumberArgument = Annotated[
    int, typer.Argument(metavar="NUMBER", help="The dead letter's number, from the list.")
]

OLDEST_SCHEMA = 8  # adds replay requests

app = command_group("Events that used up their retries in the lanes.", "qts ops dead-letters list")


@app.command(name="list")
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
        print_json({"dead_letters": [_row(letter) for letter in letters]})
    else:
        typer.echo("\n".join(map(_line, letters)) or "no dead letters")


@app.command()
def show(number: NumberArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show one dead letter with its event.

    Example: qts ops dead-letters show 7
    """
    import msgspec

    letter = _with_admin(config, lambda admin: admin.show(number))
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
        print_json(_row(letter))
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


@app.command()
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

    return with_database(config, lambda database: query(DeadLetterAdmin(database)), OLDEST_SCHEMA)


def _row(letter: StoredDeadLetter) -> dict[str, object]:
    import msgspec

    return {"state": letter.state, **msgspec.structs.asdict(letter)}


def _line(letter: StoredDeadLetter) -> str:
    return (
        f"{letter.number:>6}  {letter.died_at:%Y-%m-%d %H:%M:%S}  {letter.state:<8}  "
        f"P{letter.priority}  {letter.event_type}  {letter.handler}  {letter.error}"
    )
