"""`qts positions`: list and close positions, adopt and accept what was held before QTS."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qts.cli.console import (
    AccountOption,
    AccountsOption,
    BrokerOption,
    ConfigOption,
    JsonOption,
    YesOption,
    account_column,
    format_number,
    open_publisher,
    parse_number,
    print_json,
    with_account,
    with_accounts,
    with_run_accounts,
)
from qts.cli.groups import command_group
from qts.cli.manual import SCHEMA as MANUAL_SCHEMA
from qts.cli.manual import IdOption, carry_out, close_preview, command_id, confirm
from qts.domain import RefusedError

if TYPE_CHECKING:
    from qts.database import Database
    from qts.domain import AccountKey
    from qts.orders import BaselineHolding, PositionRow
    from qts.risk import StopRecord

Place = tuple[str, str, str]  # broker, account, symbol

positions = command_group(
    "Positions, computed from fills, and what was held before QTS.",
    "qts positions",
    "List positions; close one or all; adopt a holding",
)


@positions.callback(invoke_without_command=True)
def show_positions(
    context: typer.Context,
    every: Annotated[bool, typer.Option("--all", help="Include flat positions.")] = False,
    account: AccountsOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show positions with average price, realised PnL and fees, and what was held before QTS.

    Example: qts positions --json
    """
    import msgspec

    if context.invoked_subcommand is not None:
        return
    rows, baseline, notes = with_accounts(config, _read_positions, account)
    shown = [row for row in rows if every or row.quantity]
    if as_json:
        print_json(
            {
                "positions": [
                    {**msgspec.structs.asdict(row), "note": _note(notes, row)} for row in shown
                ],
                "baseline": baseline,
            }
        )
        return
    column = account_column([*shown, *baseline])
    lines = [column(row) + _position_line(row, _note(notes, row)) for row in shown]
    lines += [column(row) + _baseline_line(row) for row in baseline]
    typer.echo("\n".join([column(None) + _HEAD, *lines]) if lines else "no positions")


@positions.command()
def adopt(
    symbol: Annotated[str, typer.Argument(metavar="SYMBOL", help="The symbol.")],
    quantity: Annotated[
        str | None,
        typer.Argument(
            metavar="QUANTITY",
            help="How much, with --price; negative for a reduction. Without it: all that was held"
            " before QTS, at its cost.",
        ),
    ] = None,
    price: Annotated[
        str | None, typer.Option(metavar="PRICE", help="Average price of one unit.")
    ] = None,
    stops: Annotated[
        bool, typer.Option("--stops", help="Let the stops watch it, from the next price on.")
    ] = False,
    broker: BrokerOption = None,
    account: AccountOption = None,
    config: ConfigOption = None,
) -> None:
    """Take a holding that was not bought by QTS into the positions.

    Strategies may sell it from then on. Stops watch it only with --stops: gains and losses count
    from the next price, not from the cost. A running QTS follows within a second.

    Example: qts positions adopt KRW-BTC --broker upbit --stops
    """
    from qts.orders import external_fill

    if (quantity is None) != (price is None):
        missing = "QUANTITY" if quantity is None else "--price"
        raise RefusedError(f"{missing} is missing; expected QUANTITY and --price, or neither")
    change: Any = symbol
    if quantity is not None and price is not None:
        change = external_fill(
            symbol, parse_number("QUANTITY", quantity), parse_number("--price", price)
        )

    async def run(database: Database, key: AccountKey) -> tuple[AccountKey, StopRecord | None]:
        return key, await _adopt(config, database, key, change, stops)

    key, record = with_account(config, run, broker, account)
    what = symbol if quantity is None else f"{quantity} of {symbol} at {price}"
    typer.echo(f"{what} is in the ledger of {key.broker}{_watch_note(record)}")


@positions.command()
def close(
    symbol: Annotated[
        str | None, typer.Argument(metavar="SYMBOL", help="The symbol; or --all.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every position, and cancel every open order: flatten.")
    ] = False,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Kept in the log.")] = "",
    account: AccountsOption = None,
    id_: IdOption = None,
    yes: YesOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Close a position at the market, after its open orders are cancelled.

    The running QTS does it, through the gate; while the kill switch is on it is refused, as every
    order is. What was held before QTS stays.

    Example: qts positions close 005930 --reason "leaving for the day"
    """
    from qts.dashboard import ClosePositionsAction

    if (symbol is None) != every:
        raise RefusedError("expected SYMBOL or --all, and not both")
    if not reason.strip():
        raise RefusedError("--reason is missing; it is kept in the log of actions")

    async def run(database: Database, keys: list[AccountKey]) -> int:
        action = ClosePositionsAction(id=command_id(id_), symbol=symbol, reason=reason)
        lines = await close_preview(config, database, keys, symbol)
        if lines:
            confirm(lines, "Do this now?", yes=yes)
        return await carry_out(config, database, keys, action, as_json=as_json)

    if code := with_run_accounts(config, run, account, MANUAL_SCHEMA):
        raise typer.Exit(code)


@positions.command()
def accept(
    symbol: Annotated[str, typer.Argument(metavar="SYMBOL", help="The symbol.")],
    broker: BrokerOption = None,
    account: AccountOption = None,
    config: ConfigOption = None,
) -> None:
    """Count what differs in a symbol as held outside QTS, after a manual trade.

    The holding is that of the last reconciliation; the position of QTS stays as it is.

    Example: qts positions accept 005930 --broker kis
    """
    from qts.orders import accept_holding, check_symbol

    async def run(database: Database, key: AccountKey) -> tuple[AccountKey, Decimal]:
        await check_symbol(database, key, symbol)
        return key, await accept_holding(database, key, symbol)

    key, left = with_account(config, run, broker, account)
    typer.echo(f"{format_number(left)} of {symbol} are held outside QTS at {key.broker}")


_HEAD = f"{'broker':<8}{'symbol':<12}{'quantity':>18}{'average':>18}{'realised':>16}{'fees':>14}"


async def _adopt(
    config: Path | None, database: Database, key: AccountKey, change: Any, stops: bool
) -> StopRecord | None:
    from qts.orders import adopt_holding, check_symbol

    await check_symbol(database, key, change if isinstance(change, str) else change.symbol)
    async with open_publisher(database, config) as bus:
        return await adopt_holding(database, bus, key, change, stops=stops)


async def _read_positions(
    database: Database, key: AccountKey | None
) -> tuple[list[PositionRow], list[BaselineHolding], dict[Place, str]]:
    """Return positions, the baseline, and what the stops do not do for which position."""
    from qts.orders import list_baseline, list_positions

    rows = await list_positions(database, key)
    states = await database.fetch(
        "SELECT broker, account, symbol, opened_at, watched, dust FROM position_stop"
        " WHERE dust OR NOT watched"
    )
    opened = {(row.broker, row.account, row.symbol): row.opened_at for row in rows if row.quantity}
    notes = {
        place: "dust, too small to sell" if state["dust"] else "no stops"
        for state in states
        if state["opened_at"]
        == opened.get(place := (state["broker"], state["account"], state["symbol"]))
    }
    return rows, await list_baseline(database, key), notes


def _position_line(row: PositionRow, note: str) -> str:
    figures = (row.quantity, row.average_price, row.realised_pnl, row.fees)
    quantity, average, realised, fees = map(format_number, figures)
    line = f"{row.broker:<8}{row.symbol:<12}{quantity:>18}{average:>18}{realised:>16}{fees:>14}"
    return "  ".join(filter(None, (line, row.name, note)))


def _note(notes: dict[Place, str], row: PositionRow) -> str:
    return notes.get((row.broker, row.account, row.symbol), "")


def _baseline_line(row: BaselineHolding) -> str:
    quantity, average = format_number(row.quantity), format_number(row.average_price)
    return f"{row.broker:<8}{row.symbol:<12}{quantity:>18}{average:>18}{'':>30}  held before QTS"


def _watch_note(record: StopRecord | None) -> str:
    if record is None:
        return ""
    return "; its stops begin at the next price" if record.watched else "; no stop watches it"
