"""`qts notify`: try the channels, see what became of messages."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qts.cli.console import ConfigOption, JsonOption, print_json, with_database
from qts.domain import OperationError, QtsError, RefusedError

if TYPE_CHECKING:
    from qts.database import Database

SCHEMA = 10  # the one that brought the messages

app = typer.Typer(
    help="Messages to the owner: try the channels, see what became of messages.",
    epilog="Example: qts notify test --channel telegram",
    no_args_is_help=True,
)


@app.command(name="test")
def try_channels(
    channel: Annotated[
        str | None, typer.Option("--channel", metavar="NAME", help="Only this one.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Send a test message now, to every channel that is set or to one. One that takes it is open.

    Example: qts notify test --channel slack
    """
    from qts.config import load
    from qts.notify import NotificationService

    settings = load(config, os.environ).notify
    settings.check()
    wanted = [channel] if channel else list(settings.channels)
    if not wanted:
        raise RefusedError(
            "no channel is set; qts config init writes a file that explains [notify]"
        )

    async def ask(database: Database) -> list[str]:
        failures = []
        async with NotificationService.open(database, settings) as notifications:
            for name in wanted:
                try:
                    await notifications.test(name)
                    typer.echo(f"{name}: sent")
                except RefusedError:
                    raise
                except QtsError as error:
                    failures.append(name)
                    typer.echo(f"{name}: {error}")
        return failures

    if failed := with_database(config, ask, SCHEMA):
        raise OperationError(f"not sent: {', '.join(failed)}")


@app.command()
def status(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the channels and how many messages each has had.

    Example: qts notify status --json
    """
    from qts.notify import MessageStore

    found = with_database(config, lambda database: MessageStore(database).channels(), SCHEMA)
    if as_json:
        print_json({"channels": found})
        return
    if not found:
        typer.echo("no channel was ever open here")
    for each in found:
        word = f"OFF since {each.disabled_at:%F %T}: {each.reason}" if each.disabled_at else "open"
        counts = f"{each.sent:,} sent, {each.pending:,} waiting, {each.given_up:,} given up"
        typer.echo(f"{each.channel:<10}{counts}  {word}")


@app.command()
def recent(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 20,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the last messages, the youngest first.

    Example: qts notify recent --limit 5
    """
    from qts.notify import MessageStore

    found = with_database(config, lambda database: MessageStore(database).recent(limit), SCHEMA)
    if as_json:
        print_json({"messages": found})
        return
    for each in found:
        typer.echo(f"{each.occurred_at:%F %T}  {each.severity:<9}{each.title}: {each.body}")


@app.command()
def key(
    file: Annotated[Path, typer.Argument(help="Where the new private key goes; mode 0600.")],
) -> None:
    """Make the key for web push, and print the public half that browsers need.

    Example: qts notify key push.key
    """
    from qts.notify import new_key, public_key, read_key

    made = new_key()
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise RefusedError(f"{file}: {error.strerror}; name a new file") from None
    with os.fdopen(descriptor, "w") as out:
        out.write(made.reveal() + "\n")
    typer.echo(f'[notify.push]\nkey = {{ file = "{file}" }}')
    typer.echo(f"applicationServerKey {public_key(read_key(made))}")


@app.command()
def subscribe(
    file: Annotated[str, typer.Argument(help="JSON of the browser's subscription; - reads it.")],
    config: ConfigOption = None,
) -> None:
    """Let a browser have web push: give what its PushSubscription.toJSON() says.

    Example: qts notify subscribe subscription.json
    """
    from qts.notify import subscribe as keep

    try:
        text = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise RefusedError(f"{file}: {error.strerror}") from None
    name = with_database(config, lambda database: keep(database, text), SCHEMA)
    typer.echo(f"subscribed: {name}")
