"""`qts orders` and `qts positions`: inspect the ledger, cancel, reconcile and repair manually."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qts.cli.console import (
    SHORT,
    AccountOption,
    AccountsOption,
    BrokerOption,
    ConfigOption,
    JsonOption,
    SymbolOption,
    load_config,
    parse_uuid,
    print_json,
    with_account,
    with_accounts,
    with_database,
)
from qts.cli.groups import command_group
from qts.domain import AttemptState, RefusedError, check_name

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

    from qts.database import Database
    from qts.domain import AccountKey
    from qts.orders import OrderRow, PositionRow

SCHEMA = 16  # adds accounts

OrderArgument = Annotated[
    str, typer.Argument(metavar="ORDER", help="The order's id, from the list.")
]
SymbolArgument = Annotated[
    str, typer.Argument(metavar="SYMBOL", help="The symbol; * is the whole venue.")
]

orders = command_group(
    "Orders: list, inspect, cancel, reconcile with the venue, resolve unknown outcomes.",
    "qts orders list --state UNKNOWN",
    "list, show, cancel, reconcile, resolve, freeze, resume",
)
positions = command_group(
    "Positions, computed from fills.", "qts positions", "List positions; adopt a holding"
)


@orders.command(name="list")
def list_(
    state: Annotated[
        str | None,
        typer.Option(metavar="STATE", help=f"Only attempts in {', '.join(AttemptState)}."),
    ] = None,
    symbol: SymbolOption = None,
    only_open: Annotated[bool, typer.Option("--open", help="Only orders in flight.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of rows.")] = 50,
    account: AccountsOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List orders, newest first.

    Example: qts orders list --open
    """
    from qts.orders import check_ledger_symbol, list_orders

    only = state.upper() if state is not None else None
    if only is not None:
        check_name("state", only, AttemptState)

    async def read(database: Database, key: AccountKey | None) -> list[OrderRow]:
        found = await list_orders(
            database, key, state=only, symbol=symbol, only_open=only_open, limit=limit
        )
        if not found and symbol is not None:
            await check_ledger_symbol(database, symbol, lambda: _feed_symbols(config))
        return found

    rows = with_accounts(config, read, account)
    if as_json:
        print_json({"orders": rows})
    else:
        column = _account_column(rows)
        typer.echo("\n".join(column(row) + _order_line(row) for row in rows) or "no such orders")


@orders.command()
def show(order: OrderArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show one order with all of its attempts and fills.

    Example: qts orders show 0198c0de-0000-7000-8000-000000000001
    """
    import msgspec

    from qts.orders import order_history

    history = with_database(config, lambda database: order_history(database, _uuid(order)), SCHEMA)
    if as_json:
        print_json(history)
        return
    for name, value in msgspec.structs.asdict(history.order).items():
        typer.echo(f"{name:<17}{'-' if value in (None, '') else _text(value)}")
    for title, rows in (("attempt", history.attempts), ("fill", history.fills)):
        for row in rows:
            fields = [f"{name} {_text(value)}" for name, value in row.items() if value]
            typer.echo(f"{title}: {', '.join(fields)}")


@orders.command()
def cancel(order: OrderArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Request the cancellation of an order; the venue confirms it.

    Example: qts orders cancel 0198c0de-0000-7000-8000-000000000001
    """
    intent = _uuid(order)
    requested = with_account(config, lambda database, key: _cancel(database, key, intent))
    if as_json:
        print_json({"asked": requested})
    elif requested:
        typer.echo(f"cancellation of {order} requested; see qts orders show {order}")
    else:
        typer.echo(f"nothing of {order} is left to cancel")


@orders.command()
def reconcile(account: AccountOption = None, config: ConfigOption = None) -> None:
    """Request that the running QTS reconciles with the venue now.

    Example: qts orders reconcile
    """
    with_account(config, _request_reconciliation, account=account)
    typer.echo("reconciliation requested; see qts orders list --state UNKNOWN and the log")


@orders.command()
def resolve(
    attempt: Annotated[str, typer.Argument(metavar="ATTEMPT", help="An UNKNOWN attempt's id.")],
    order: Annotated[
        str, typer.Option("--as", metavar="ORDER_ID|absent", help="What the venue shows.")
    ],
    config: ConfigOption = None,
) -> None:
    """Resolve an unknown outcome: the venue shows this order, or none.

    Example: qts orders resolve 0198c0de-0000-7000-8000-000000000001 --as absent
    """
    name = None if order.lower() == "absent" else order
    if not order.strip():
        raise RefusedError("--as is empty; name the venue's order, or absent")
    with_database(config, lambda database: _resolve(database, _uuid(attempt), name), SCHEMA)
    typer.echo(f"{attempt} is {'absent' if name is None else f'order {name}'}")


@orders.command()
def freeze(
    symbol: SymbolArgument,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Shown until the position is resumed.")
    ],
    broker: BrokerOption = None,
    account: AccountOption = None,
    config: ConfigOption = None,
) -> None:
    """Freeze a position: no strategy may enter or exit the symbol; its stops stay active.

    `qts orders resume` ends the freeze.

    Example: qts orders freeze KRW-BTC --broker upbit --reason "a fork is near"
    """

    async def run(database: Database, key: AccountKey) -> tuple[AccountKey, bool]:
        return key, await _freeze(database, key, symbol, reason)

    key, frozen = with_account(config, run, broker, account)
    typer.echo(f"{symbol} is frozen at {key.broker}" if frozen else f"{symbol} was frozen before")


@orders.command()
def resume(
    symbol: SymbolArgument,
    broker: BrokerOption = None,
    account: AccountOption = None,
    config: ConfigOption = None,
) -> None:
    """Allow orders of a suspended or frozen symbol again.

    Example: qts orders resume '*' --broker upbit
    """
    from qts.orders import resume_manually

    async def run(database: Database, key: AccountKey) -> AccountKey:
        await resume_manually(database, key, symbol)
        return key

    typer.echo(f"{symbol} may trade at {with_account(config, run, broker, account).broker}")


@positions.callback(invoke_without_command=True)
def show_positions(
    context: typer.Context,
    every: Annotated[bool, typer.Option("--all", help="Include flat positions.")] = False,
    account: AccountsOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show positions with average price, realised PnL and fees.

    Example: qts positions --json
    """
    from qts.orders import list_positions as read

    if context.invoked_subcommand is not None:
        return
    rows = with_accounts(config, read, account)
    shown = [row for row in rows if every or row.quantity]
    if as_json:
        print_json({"positions": shown})
        return
    column = _account_column(shown)
    head = column(None) + _HEAD
    lines = [column(row) + _position_line(row) for row in shown]
    typer.echo("\n".join([head, *lines]) if shown else "no positions")


@positions.command()
def adopt(
    symbol: Annotated[str, typer.Argument(metavar="SYMBOL", help="The symbol.")],
    quantity: Annotated[
        str, typer.Argument(metavar="QUANTITY", help="How much; negative for a reduction.")
    ],
    price: Annotated[str, typer.Option(metavar="PRICE", help="Average price of one unit.")],
    broker: BrokerOption = None,
    account: AccountOption = None,
    config: ConfigOption = None,
) -> None:
    """Record a holding that was not bought by QTS in the ledger.

    Example: qts positions adopt KRW-BTC 0.5 --price 90000000 --broker upbit
    """
    from qts.orders import external_fill

    change = external_fill(symbol, _number("QUANTITY", quantity), _number("--price", price))

    async def run(database: Database, key: AccountKey) -> AccountKey:
        await _adopt(database, key, change)
        return key

    key = with_account(config, run, broker, account)
    typer.echo(f"{quantity} of {symbol} at {price} is in the ledger of {key.broker}")


_HEAD = f"{'broker':<8}{'symbol':<12}{'quantity':>18}{'average':>18}{'realised':>16}{'fees':>14}"


async def _cancel(database: Database, key: AccountKey, intent_id: UUID) -> bool:
    from qts.orders import OrderManager
    from qts.outbox import OutboxConfig, PostgresBus

    async with PostgresBus.open(database, OutboxConfig().streams) as bus:
        return await OrderManager(database, bus, key).cancel(intent_id)


async def _freeze(database: Database, key: AccountKey, symbol: str, reason: str) -> bool:
    from qts.domain import SystemClock
    from qts.orders import check_symbol, freeze_position
    from qts.outbox import OutboxConfig, PostgresBus

    await check_symbol(database, key, symbol, or_whole_venue=True)
    async with PostgresBus.open(database, OutboxConfig().streams) as bus:
        now = SystemClock().now()
        return await freeze_position(database, bus, key, symbol, reason, now)


async def _request_reconciliation(database: Database, key: AccountKey) -> None:
    from qts.orders import Reconcile
    from qts.outbox import TRADE_COMMAND, OutboxConfig, OutboxEvent, PostgresBus

    event = OutboxEvent.of(TRADE_COMMAND, Reconcile(), ("Books", "all"), account=key)
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


async def _adopt(database: Database, key: AccountKey, change: Any) -> None:
    from qts.orders import adopt_holding, check_symbol
    from qts.outbox import OutboxConfig, PostgresBus

    await check_symbol(database, key, change.symbol)
    async with PostgresBus.open(database, OutboxConfig().streams) as bus:
        await adopt_holding(database, bus, key, change)


def _feed_symbols(config: Path | None) -> list[str]:
    """Return the symbols of the feed if the settings name a list."""
    from qts.feed import read_symbols

    path = load_config(config).feed.symbols
    return [] if path is None else read_symbols(path)


def _account_column(
    rows: Sequence[OrderRow] | Sequence[PositionRow],
) -> Callable[[OrderRow | PositionRow | None], str]:
    """Return the text of the first column: the account, only where there are several."""
    if len({(row.broker, row.account) for row in rows}) < 2:
        return lambda _row: ""
    return lambda row: f"{row.account[:SHORT] if row is not None else 'account':<{SHORT + 2}}"


def _order_line(row: OrderRow) -> str:
    price = f" at {_text(row.price)}" if row.price is not None else " at the market"
    state = row.attempt_state or "-"
    until = row.good_until if row.status == "CREATED" else None
    note = f", until {until:%Y-%m-%d %H:%M:%S}" if until is not None else ""
    note += "  operator must resolve: see show" if row.needs_person else ""
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
    """Format a number without trailing zeros."""
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
    return parse_uuid(text, "an order id; expected a UUID, see qts orders list")
