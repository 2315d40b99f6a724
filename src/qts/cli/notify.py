"""`qts ops notify`, `metrics`, `alerts` and `actions`: messages, alerts and what operators did."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qts.cli.console import (
    AccountsOption,
    ConfigOption,
    JsonOption,
    load_config,
    print_json,
    with_database,
    with_run_accounts,
)
from qts.cli.groups import command_group
from qts.domain import OperationError, QtsError, RefusedError

if TYPE_CHECKING:
    from qts.dashboard import ActionRow
    from qts.database import Database
    from qts.domain import AccountKey
    from qts.notify import StoredAlert

MESSAGE_SCHEMA = 10  # adds the messages

notify = command_group(
    "Notifications: test a channel, status, recent messages.",
    "qts ops notify test --channel telegram",
)


@notify.command(name="test")
def try_channels(
    channel: Annotated[
        str | None, typer.Option("--channel", metavar="NAME", help="Only this channel.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Send a test message to every configured channel, or to one; a success enables it again.

    Example: qts ops notify test --channel slack
    """
    from qts.config import load
    from qts.notify import NotificationService

    settings = load(config, os.environ).notify
    settings.check()
    names = [channel] if channel else list(settings.channels)
    if not names:
        raise RefusedError(
            "no channel is configured; qts config init writes a file that explains [notify]"
        )

    async def send(database: Database) -> list[str]:
        failures = []
        async with NotificationService.open(database, settings) as notifications:
            for name in names:
                try:
                    await notifications.test(name)
                    typer.echo(f"{name}: sent")
                except RefusedError:
                    raise
                except QtsError as error:
                    failures.append(name)
                    typer.echo(f"{name}: {error}")
        return failures

    if failed := with_database(config, send, MESSAGE_SCHEMA):
        raise OperationError(f"not sent: {', '.join(failed)}")


@notify.command()
def status(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the channels and how many messages each has sent.

    Example: qts ops notify status --json
    """
    from qts.notify import MessageStore

    found = with_database(
        config, lambda database: MessageStore(database).channels(), MESSAGE_SCHEMA
    )
    if as_json:
        print_json({"channels": found})
        return
    if not found:
        typer.echo("no channel was ever used here")
    for each in found:
        state = f"OFF since {each.disabled_at:%F %T}: {each.reason}" if each.disabled_at else "on"
        counts = f"{each.sent:,} sent, {each.pending:,} pending, {each.given_up:,} abandoned"
        typer.echo(f"{each.channel:<10}{counts}  {state}")


@notify.command()
def recent(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of rows.")] = 20,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the last messages, newest first.

    Example: qts ops notify recent --limit 5
    """
    from qts.notify import MessageStore

    found = with_database(
        config, lambda database: MessageStore(database).recent(limit), MESSAGE_SCHEMA
    )
    if as_json:
        print_json({"messages": found})
        return
    for each in found:
        typer.echo(f"{each.occurred_at:%F %T}  {each.severity:<9}{each.title}: {each.body}")


@notify.command()
def key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="New file for the private key.")],
) -> None:
    """Generate the key for web push and print its public half, which browsers need.

    Example: qts ops notify key push.key
    """
    from qts.notify import new_key, public_key, read_key

    generated = new_key()
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise RefusedError(f"{file}: {error.strerror}; name a new file") from None
    with os.fdopen(descriptor, "w") as out:
        out.write(generated.reveal() + "\n")
    typer.echo(f'[notify.push]\nkey = {{ file = "{file}" }}')
    typer.echo(f"applicationServerKey {public_key(read_key(generated))}")


@notify.command()
def subscribe(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="PushSubscription as JSON; - is standard input.")
    ],
    config: ConfigOption = None,
) -> None:
    """Register a browser for web push, with the output of its PushSubscription.toJSON().

    Example: qts ops notify subscribe subscription.json
    """
    from qts.notify import subscribe as store

    try:
        text = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise RefusedError(f"{file}: {error.strerror}") from None
    name = with_database(config, lambda database: store(database, text), MESSAGE_SCHEMA)
    typer.echo(f"subscribed: {name}")


metrics = command_group("Files for Prometheus and Grafana.", "qts ops metrics rules > alerts.yaml")


@metrics.command()
def rules(as_json: JsonOption = False) -> None:
    """Print the alert rules as a rule file of Prometheus.

    Example: qts ops metrics rules > /etc/prometheus/qts.yaml
    """
    from qts.notify import prometheus_rules

    found = prometheus_rules()
    if as_json:
        print_json(found)
    else:
        typer.echo("# Made by: qts ops metrics rules")
        typer.echo(to_yaml(found))


@metrics.command()
def grafana() -> None:
    """Print the dashboard as a file that Grafana imports.

    Example: qts ops metrics grafana > qts.json
    """
    from qts.notify import grafana_dashboard

    print_json(grafana_dashboard())


def to_yaml(value: Any, depth: int = 0) -> str:
    """Render maps, lists and texts; texts are quoted as in JSON, which YAML includes."""
    pad = "  " * depth
    if isinstance(value, dict):
        lines = []
        for key, inside in value.items():
            nested = isinstance(inside, dict | list) and inside
            gap = "\n" if nested else " "
            lines.append(f"{pad}{key}:{gap}{to_yaml(inside, depth + 1)}")
        return "\n".join(lines)
    if isinstance(value, list):
        items = [to_yaml(item, depth + 1) for item in value]
        return "\n".join(f"{pad}- {item.lstrip()}" for item in items)
    return json.dumps(value, ensure_ascii=False)


ALERT_SCHEMA = 25  # adds alerts

alerts = command_group(
    "Alerts of the runs: open until they are acknowledged.",
    "qts ops alerts list",
    "Alerts: list, acknowledge",
)


@alerts.command(name="list")
def list_(
    every: Annotated[bool, typer.Option("--all", help="Include acknowledged alerts.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of rows.")] = 50,
    account: AccountsOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List open alerts, newest first.

    Example: qts ops alerts list --all
    """
    from qts.notify import AlertStore

    async def read(database: Database, keys: list[AccountKey]) -> list[StoredAlert]:
        return await AlertStore(database, keys).rows(limit, acknowledged=every)

    rows = with_run_accounts(config, read, account, ALERT_SCHEMA)
    if as_json:
        print_json({"alerts": rows})
    else:
        typer.echo("\n".join(map(_alert_line, rows)) or "no open alerts")


@alerts.command()
def ack(
    ids: Annotated[
        list[int] | None, typer.Argument(metavar="ALERT", help="Alerts, from the list; or --all.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All that are open.")] = False,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Kept with it.")] = "",
    account: AccountsOption = None,
    config: ConfigOption = None,
) -> None:
    """Acknowledge alerts: who and when is kept, and they leave the list.

    Example: qts ops alerts ack 12 --reason "venue maintenance"
    """
    from qts.cli.manual import cli_operator
    from qts.dashboard import AcknowledgeAlertsAction, ActionService

    if bool(ids) == every:
        raise RefusedError("expected ALERT or --all, and not both")

    async def run(database: Database, keys: list[AccountKey]) -> str:
        service = ActionService(database, keys, load_config(config).outbox.streams, None)
        action = AcknowledgeAlertsAction(ids=ids or None, reason=reason)
        return (await service.perform(action, cli_operator())).message

    typer.echo(with_run_accounts(config, run, account, ALERT_SCHEMA))


def _alert_line(row: StoredAlert) -> str:
    times = f" ({row.times} times)" if row.times > 1 else ""
    code = f"{row.code} " if row.code else ""
    note = f": {row.note}" if row.note else ""
    done = (
        f"  acknowledged {row.acknowledged_at:%F %T} by {row.acknowledged_by}{note}"
        if row.acknowledged_at
        else ""
    )
    return f"{row.id:<6}{row.last_at:%F %T}  {row.severity:<9}{code}{row.message}{times}{done}"


ACTION_SCHEMA = 11  # adds the log of actions


def actions(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of rows.")] = 50,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List what operators did: who, what and why.

    Newest first: actions on the dashboard or by Telegram, and manual orders and closes.

    Example: qts ops actions --limit 20
    """
    from qts.dashboard import ActionLog

    rows = with_database(config, lambda database: ActionLog(database).rows(limit), ACTION_SCHEMA)
    if as_json:
        print_json({"actions": rows})
    else:
        typer.echo("\n".join(map(_action_line, rows)) or "no actions")


def _action_line(row: ActionRow) -> str:
    reason = f" ({row.detail['reason']})" if row.detail.get("reason") else ""
    what = f"{row.action} {row.target}".strip()
    message = f": {row.message}" if row.message else ""
    return f"{row.at:%Y-%m-%d %H:%M:%S}  {row.actor}  {what}{reason}  {row.outcome}{message}"
