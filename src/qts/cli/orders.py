"""`qts orders` and `qts positions`: what was ordered, what is held, and what a person decides."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import msgspec
import typer

from qts.cli.console import ConfigOption, JsonOption, print_json, with_database
from qts.domain import AttemptState, RefusedError, SystemClock

if TYPE_CHECKING:
    from qts.database import Database
    from qts.orders import OrderRow, PositionRow

SCHEMA = 6  # the one that brought orders

OrderArgument = Annotated[str, typer.Argument(metavar="ORDER", help="The order's id, of the list.")]
SymbolOption = Annotated[str | None, typer.Option("--symbol", help="Only this symbol.")]

orders = typer.Typer(
    help="Orders: list them, follow one, cancel, and say what became of an unknown one.",
    epilog="Example: qts orders list --state UNKNOWN",
    no_args_is_help=True,
)
positions = typer.Typer(
    help="Positions: what our fills add up to.", epilog="Example: qts positions"
)


@orders.command(name="list")
def list_(
    state: Annotated[
        str | None, typer.Option(help=f"Only attempts that are {', '.join(AttemptState)}.")
    ] = None,
    symbol: SymbolOption = None,
    only_open: Annotated[bool, typer.Option("--open", help="Only what is under way.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Orders at most.")] = 50,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List orders, the youngest first.

    Example: qts orders list --open
    """
    from qts.orders import list_orders

    wanted = state.upper() if state else None
    if wanted is not None and wanted not in list(AttemptState):
        raise RefusedError(f"--state {state}: must be one of {', '.join(AttemptState)}")
    rows = with_database(
        config,
        lambda database: list_orders(
            database, state=wanted, symbol=symbol, only_open=only_open, limit=limit
        ),
        SCHEMA,
    )
    if as_json:
        print_json({"orders": rows})
    else:
        typer.echo("\n".join(map(_order_line, rows)) or "no such orders")


@orders.command()
def show(order: OrderArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show one order's whole life: every attempt, every fill.

    Example: qts orders show 0198c0de-0000-7000-8000-000000000001
    """
    from qts.orders import order_history

    life = with_database(config, lambda database: order_history(database, _uuid(order)), SCHEMA)
    if as_json:
        print_json(life)
        return
    for name, value in msgspec.structs.asdict(life.order).items():
        typer.echo(f"{name:<17}{'-' if value in (None, '') else _text(value)}")
    for title, rows in (("attempt", life.attempts), ("fill", life.fills)):
        for row in rows:
            told = [f"{name} {_text(value)}" for name, value in row.items() if value]
            typer.echo(f"{title}: {', '.join(told)}")


@orders.command()
def cancel(order: OrderArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Ask for an order to be cancelled; it is over when the venue says so.

    Example: qts orders cancel 0198c0de-0000-7000-8000-000000000001
    """
    asked = with_database(config, lambda database: _cancel(database, _uuid(order)), SCHEMA)
    if as_json:
        print_json({"asked": asked})
    elif asked:
        typer.echo(f"asked for {order} to be cancelled; see qts orders show {order}")
    else:
        typer.echo(f"nothing of {order} is left to cancel")


@orders.command()
def reconcile(config: ConfigOption = None) -> None:
    """Have the running QTS compare its books with the venue's now.

    Example: qts orders reconcile
    """
    with_database(config, _ask_to_reconcile, SCHEMA)
    typer.echo("asked for; see qts orders list --state UNKNOWN and the log")


@orders.command()
def resolve(
    attempt: Annotated[str, typer.Argument(metavar="ATTEMPT", help="An UNKNOWN attempt's id.")],
    order: Annotated[
        str, typer.Option("--as", metavar="ORDER_ID|absent", help="What the venue shows.")
    ],
    config: ConfigOption = None,
) -> None:
    """Say what became of an attempt: you looked at the venue and saw this order, or none.

    Example: qts orders resolve 0198c0de-0000-7000-8000-000000000001 --as absent
    """
    name = None if order.lower() == "absent" else order
    if not order.strip():
        raise RefusedError("--as is empty; name the venue's order, or absent")
    with_database(config, lambda database: _resolve(database, _uuid(attempt), name), SCHEMA)
    typer.echo(f"{attempt} is {'absent' if name is None else f'order {name}'}")


@orders.command()
def freeze(
    symbol: Annotated[str, typer.Argument(help="The symbol; * is the whole venue.")],
    broker: Annotated[str, typer.Option(help="At this broker.")],
    reason: Annotated[str, typer.Option(help="Why, for whoever releases it.")],
    config: ConfigOption = None,
) -> None:
    """Let no strategy enter or leave a symbol; its stops stay in force, and so do you.

    `qts orders resume` releases it.

    Example: qts orders freeze KRW-BTC --broker upbit --reason "a fork is near"
    """
    frozen = with_database(
        config, lambda database: _freeze(database, broker, symbol, reason), SCHEMA
    )
    typer.echo(f"{symbol} is frozen at {broker}" if frozen else f"{symbol} was frozen before")


@orders.command()
def resume(
    symbol: Annotated[str, typer.Argument(help="The market; * is the whole venue.")],
    broker: Annotated[str, typer.Option(help="At this broker.")],
    config: ConfigOption = None,
) -> None:
    """Let orders of a suspended or frozen market out again.

    Example: qts orders resume '*' --broker upbit
    """
    from qts.orders import resume_manually

    with_database(config, lambda database: resume_manually(database, broker, symbol), SCHEMA)
    typer.echo(f"{symbol} may trade at {broker}")


@positions.callback(invoke_without_command=True)
def show_positions(
    context: typer.Context,
    every: Annotated[bool, typer.Option("--all", help="Those that are flat too.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what is held, at what cost, and what it has earned.

    Example: qts positions --json
    """
    from qts.orders import list_positions as read

    if context.invoked_subcommand is not None:
        return
    rows = with_database(config, lambda database: read(database), SCHEMA)
    shown = [row for row in rows if every or row.quantity]
    if as_json:
        print_json({"positions": shown})
        return
    typer.echo("\n".join([_HEAD, *map(_position_line, shown)]) if shown else "nothing is held")


@positions.command()
def adopt(
    symbol: Annotated[str, typer.Argument(help="The symbol.")],
    quantity: Annotated[str, typer.Argument(help="How much; with a minus, how much is gone.")],
    price: Annotated[str, typer.Option(help="What a piece cost.")],
    broker: Annotated[str, typer.Option(help="At this broker.")],
    config: ConfigOption = None,
) -> None:
    """Take a holding that was not bought here into our books.

    Example: qts positions adopt KRW-BTC 0.5 --price 90000000 --broker upbit
    """
    from qts.orders import external_fill

    change = external_fill(symbol, _number("QUANTITY", quantity), _number("--price", price))
    with_database(config, lambda database: _adopt(database, broker, change), SCHEMA)
    typer.echo(f"{quantity} of {symbol} at {price} is in the books of {broker}")


_HEAD = f"{'broker':<8}{'symbol':<12}{'quantity':>18}{'average':>18}{'realised':>16}{'fees':>14}"


async def _cancel(database: Database, intent_id: UUID) -> bool:
    from qts.orders import OrderManager
    from qts.outbox import OutboxConfig, PostgresBus

    async with PostgresBus.open(database, OutboxConfig().streams) as bus:
        return await OrderManager(database, bus, "").cancel(intent_id)


async def _freeze(database: Database, broker: str, symbol: str, reason: str) -> bool:
    from qts.orders import freeze_position
    from qts.outbox import OutboxConfig, PostgresBus

    async with PostgresBus.open(database, OutboxConfig().streams) as bus:
        now = SystemClock().now()
        return await freeze_position(database, bus, broker, symbol, reason, now)


async def _ask_to_reconcile(database: Database) -> None:
    from qts.orders import Reconcile
    from qts.outbox import TRADE_COMMAND, OutboxConfig, OutboxEvent, PostgresBus

    event = OutboxEvent.of(TRADE_COMMAND, Reconcile(), ("Books", "all"))
    async with (
        PostgresBus.open(database, OutboxConfig().streams) as bus,
        database.transaction() as tx,
    ):
        await bus.publish(tx, event)


async def _resolve(database: Database, attempt_id: UUID, order_id: str | None) -> None:
    from qts.orders import resolve_manually
    from qts.outbox import OutboxConfig, PostgresBus

    async with PostgresBus.open(database, OutboxConfig().streams) as bus:
        await resolve_manually(database, bus, attempt_id, order_id)


async def _adopt(database: Database, broker: str, change: Any) -> None:
    from qts.orders import adopt_holding as take_over
    from qts.outbox import OutboxConfig, PostgresBus

    async with PostgresBus.open(database, OutboxConfig().streams) as bus:
        await take_over(database, bus, broker, change)


def _order_line(row: OrderRow) -> str:
    price = f" at {_text(row.price)}" if row.price is not None else " at the market"
    state = row.attempt_state or "-"
    note = "  a person has to choose: see show" if row.needs_person else ""
    if row.reason_code:
        note = f"  {row.reason_code}{note}"
    return (
        f"{row.created_at:%Y-%m-%d %H:%M:%S}  {row.intent_id}  {row.status:<9}  {state:<9}  "
        f"{row.intent_type} {row.side} {_text(row.quantity)} {row.symbol}{price}, "
        f"{_text(row.filled)} filled{note}"
    )


def _position_line(row: PositionRow) -> str:
    figures = (row.quantity, row.average_price, row.realised_pnl, row.fees)
    quantity, average, realised, fees = map(_text, figures)
    return f"{row.broker:<8}{row.symbol:<12}{quantity:>18}{average:>18}{realised:>16}{fees:>14}"


def _text(value: object) -> str:
    """Numbers as people write them: no zeros that say nothing."""
    if not isinstance(value, Decimal):
        return str(value)
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _number(name: str, text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise RefusedError(f"{name} {text!r} is not a number") from None


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise RefusedError(
            f"{text!r} is not an id; it looks like a UUID, see qts orders list"
        ) from None
