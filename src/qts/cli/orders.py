"""`qts orders`: inspect orders, place, cancel, reconcile and repair manually."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from qts.cli.console import (
    AccountOption,
    AccountsOption,
    BrokerOption,
    ConfigOption,
    JsonOption,
    SymbolOption,
    YesOption,
    account_column,
    format_number,
    load_config,
    open_publisher,
    parse_number,
    parse_uuid,
    print_json,
    with_account,
    with_accounts,
    with_database,
)
from qts.cli.groups import command_group
from qts.cli.manual import SCHEMA as MANUAL_SCHEMA
from qts.cli.manual import IdOption, carry_out, command_id, confirm
from qts.domain import AttemptState, RefusedError, Side, check_name

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

    from qts.dashboard import PlaceOrderAction
    from qts.database import Database
    from qts.domain import AccountKey
    from qts.orders import OrderRow

SCHEMA = 27  # adds stop orders

OrderArgument = Annotated[
    str, typer.Argument(metavar="ORDER", help="The order's id, from the list.")
]
SymbolArgument = Annotated[
    str, typer.Argument(metavar="SYMBOL", help="The symbol; * is the whole venue.")
]

orders = command_group(
    "Orders: list, inspect, place, cancel, reconcile with the venue, resolve unknown outcomes.",
    "qts orders list --state UNKNOWN",
    "list, show, place, cancel, reconcile, resolve, freeze, resume",
)


@orders.command(name="list")
def list_(
    state: Annotated[
        str | None,
        typer.Option(
            metavar="STATE",
            help=f"Only attempts in {', '.join(AttemptState)}; WAITING: stop orders.",
        ),
    ] = None,
    symbol: SymbolOption = None,
    only_open: Annotated[bool, typer.Option("--open", help="Only orders in flight.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of rows.")] = 50,
    account: AccountsOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List orders, newest first; stop orders that wait for their price are among them.

    Example: qts orders list --open
    """
    from qts.orders import WAITING, check_ledger_symbol, list_orders

    only = state.upper() if state is not None else None
    if only is not None:
        check_name("state", only, (*AttemptState, WAITING))

    async def read(database: Database, key: AccountKey | None) -> list[OrderRow]:
        found = await list_orders(
            database, key, state=only, symbol=symbol, only_open=only_open, limit=limit
        )
        if not found and symbol is not None:
            await check_ledger_symbol(database, symbol, lambda: _feed_symbols(config))
        return found

    rows = with_accounts(config, read, account, SCHEMA)
    if as_json:
        print_json({"orders": rows})
    else:
        column = account_column(rows)
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
        typer.echo(f"{name:<17}{'-' if value in (None, '') else format_number(value)}")
    for title, rows in (("attempt", history.attempts), ("fill", history.fills)):
        for row in rows:
            fields = [f"{name} {format_number(value)}" for name, value in row.items() if value]
            typer.echo(f"{title}: {', '.join(fields)}")


@orders.command()
def place(
    side: Annotated[str, typer.Argument(metavar="BUY|SELL", help="The side.")],
    symbol: Annotated[str, typer.Argument(metavar="SYMBOL", help="The symbol.")],
    quantity: Annotated[str, typer.Option("--quantity", metavar="N", help="How much.")],
    limit: Annotated[
        str | None, typer.Option("--limit", metavar="PRICE", help="The worst price to accept.")
    ] = None,
    market: Annotated[
        bool, typer.Option("--market", help="At the market; so it is without --limit.")
    ] = False,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Kept in the log.")] = "",
    account: AccountOption = None,
    id_: IdOption = None,
    yes: YesOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Place an order manually, through the gate and the run of the account.

    A refusal prints the reasons of the gate. Stops watch what was bought; strategies leave its
    symbol to you.

    Example: qts orders place BUY 005930 --quantity 3 --limit 71000 --reason "earnings"
    """
    from qts.dashboard import PlaceOrderAction

    check_name("side", side.upper(), Side)
    if limit is not None and market:
        raise RefusedError("--limit and --market are both given; expected one of them")
    price = None if limit is None else parse_number("--limit", limit)

    async def run(database: Database, key: AccountKey) -> int:
        action = PlaceOrderAction(
            id=command_id(id_),
            symbol=symbol,
            side=Side(side.upper()),
            quantity=parse_number("--quantity", quantity),
            price=price,
            reason=reason,
            account=str(key),
        )
        confirm(_order_preview(action, key), "Send this order?", yes=yes)
        return await carry_out(config, database, [key], action, as_json=as_json)

    if code := with_account(config, run, account=account, schema=MANUAL_SCHEMA):
        raise typer.Exit(code)


@orders.command()
def cancel(order: OrderArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Request the cancellation of an order; the venue confirms it.

    A stop order that waits is cancelled by the running QTS; without one, at once.

    Example: qts orders cancel 0198c0de-0000-7000-8000-000000000001
    """
    intent = _uuid(order)
    requested = with_account(
        config, lambda database, key: _cancel(config, database, key, intent), schema=SCHEMA
    )
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
    with_account(
        config,
        lambda database, key: _request_reconciliation(config, database, key),
        account=account,
    )
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
    with_database(config, lambda database: _resolve(config, database, _uuid(attempt), name), SCHEMA)
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
        return key, await _freeze(config, database, key, symbol, reason)

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


def _order_preview(action: PlaceOrderAction, key: AccountKey) -> list[str]:
    at = "at the market"
    if action.price is not None:
        value = action.price * action.quantity
        at = f"at {format_number(action.price)} or better, {value:,.0f} won"
    quantity = format_number(action.quantity)
    return [f"{action.side} {quantity} {action.symbol} {at}, account {key.short}"]


async def _cancel(
    config: Path | None, database: Database, key: AccountKey, intent_id: UUID
) -> bool:
    from qts.orders import OrderManager

    async with open_publisher(database, config) as bus:
        return await OrderManager(database, bus, key, None).cancel(intent_id)


async def _freeze(
    config: Path | None, database: Database, key: AccountKey, symbol: str, reason: str
) -> bool:
    from qts.domain import SystemClock
    from qts.orders import check_symbol, freeze_position

    await check_symbol(database, key, symbol, or_whole_venue=True)
    async with open_publisher(database, config) as bus:
        now = SystemClock().now()
        return await freeze_position(database, bus, key, symbol, reason, now)


async def _request_reconciliation(config: Path | None, database: Database, key: AccountKey) -> None:
    from qts.orders import Reconcile
    from qts.outbox import TRADE_COMMAND, OutboxEvent

    event = OutboxEvent.of(TRADE_COMMAND, Reconcile(), ("Books", "all"), account=key)
    async with (
        open_publisher(database, config) as bus,
        database.transaction() as tx,
    ):
        await bus.publish(tx, event)


async def _resolve(
    config: Path | None, database: Database, attempt_id: UUID, order_id: str | None
) -> None:
    from qts.orders import resolve_manually

    async with open_publisher(database, config) as bus:
        await resolve_manually(database, bus, attempt_id, order_id)


def _feed_symbols(config: Path | None) -> list[str]:
    """Return the symbols of the feed if the settings name a list."""
    from qts.feed import read_symbols

    path = load_config(config).feed.symbols
    return [] if path is None else read_symbols(path)


def _order_line(row: OrderRow) -> str:
    from qts.orders import WAITING

    price = f" at {format_number(row.price)}" if row.price is not None else " at the market"
    state, name = row.attempt_state or "-", f" {row.name}" if row.name else ""
    until = row.good_until if row.status in ("CREATED", WAITING) else None
    note = f", until {until:%Y-%m-%d %H:%M:%S}" if until is not None else ""
    if row.trigger is not None:
        price += f" once a trade is at {format_number(row.trigger)}"
    note += "  operator must resolve: see show" if row.needs_person else ""
    if row.reason_code:
        note = f"  {row.reason_code}{note}"
    return (
        f"{row.created_at:%Y-%m-%d %H:%M:%S}  {row.intent_id}  {row.status:<9}  {state:<9}  "
        f"{row.intent_type} {row.side} {format_number(row.quantity)} {row.symbol}{name}{price}, "
        f"{format_number(row.filled)} filled{note}"
    )


def _uuid(text: str) -> UUID:
    return parse_uuid(text, "an order id; expected a UUID, see qts orders list")
