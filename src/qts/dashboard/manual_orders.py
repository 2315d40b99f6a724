"""Manual orders: commands are requested of the runs of the accounts and waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple
from uuid import UUID, uuid5

from qts.database import Database
from qts.domain import AccountKey, OperationError, RefusedError, SystemClock, check_name
from qts.orders import (
    ClosePositions,
    ManualCommand,
    ManualRequest,
    ManualState,
    NewCommand,
    PlaceOrder,
    PositionRow,
    check_instrument,
    check_symbol,
    list_positions,
    open_intents,
    read_command,
    request_command,
    wait_for_outcome,
)
from qts.outbox import PostgresBus, StreamConfig
from qts.risk import KillSwitch

MAX_NUMBER = Decimal(10) ** 20  # the ledger stores no larger one
Commands = Sequence[tuple[AccountKey, ManualCommand]]


class CommandOrigin(NamedTuple):
    """Who ordered it and why; a repeated order has the same id.

    `action_id` is its row in the log of actions.
    """

    id: UUID
    actor: str
    reason: str
    action_id: int


class ManualOrderError(OperationError):
    """Manual commands of which one was refused, failed or expired."""

    def __init__(self, commands: Commands) -> None:
        super().__init__(outcome_text(commands))
        self.commands = [command for _, command in commands]
        self.is_refused = all(each.state is ManualState.REFUSED for each in self.commands)


class ClosePreview(NamedTuple):
    """What closing will do, by account, and whether a kill switch refuses it."""

    lines: Sequence[str]
    is_stopped: bool


class ManualOrderService:
    """Places and closes at the accounts of a run, through the run that holds each of them."""

    def __init__(
        self,
        database: Database,
        accounts: Sequence[AccountKey],
        streams: Mapping[str, StreamConfig],
    ) -> None:
        self._database = database
        self._accounts = accounts
        self._streams = streams
        self._clock = SystemClock()

    def only(self, account: str | None) -> AccountKey:
        """Return the account that is named, or the only one."""
        keys = self._chosen(account)
        if len(keys) > 1:
            raise RefusedError(f"account is missing; expected one of {', '.join(map(str, keys))}")
        return keys[0]

    async def place(self, origin: CommandOrigin, key: AccountKey, request: PlaceOrder) -> Commands:
        """Place an order and wait for its outcome."""
        _check_number("quantity", request.quantity)
        if request.price is not None:
            _check_number("price", request.price)
        await check_symbol(self._database, key, request.symbol)
        await check_instrument(self._database, request.symbol)
        return await self._carry_out(origin, {key: request})

    async def close(
        self, origin: CommandOrigin, symbol: str | None, account: str | None
    ) -> Commands:
        """Close a position, or all of them, and wait for the outcome; [] if nothing is open."""
        keys = self._chosen(account)
        known = [key for key in keys if await self._is_known(origin, key)]
        concerned = known or [
            key
            for key, names in (await self.open_symbols(keys)).items()
            if (names if symbol is None else symbol in names)
        ]
        if symbol is not None and not concerned:
            names = {name for found in (await self.open_symbols(keys)).values() for name in found}
            check_name("position", symbol, sorted(names))
        return await self._carry_out(
            origin, dict.fromkeys(concerned, ClosePositions(symbol=symbol))
        )

    async def open_symbols(self, keys: Sequence[AccountKey]) -> dict[AccountKey, set[str]]:
        """Return the symbols of each account that are held or have an open order."""
        found = {}
        for key in keys:
            held = {row.symbol for row in await list_positions(self._database, key) if row.quantity}
            found[key] = held | {name for _, name in await open_intents(self._database, key)}
        return found

    async def _is_known(self, origin: CommandOrigin, key: AccountKey) -> bool:
        return await read_command(self._database, _command_id(origin, key)) is not None

    async def _carry_out(
        self, origin: CommandOrigin, requests: Mapping[AccountKey, ManualRequest]
    ) -> Commands:
        """Request all commands, then wait for all; raise ManualOrderError unless all are DONE."""
        action_id = origin.action_id if len(requests) == 1 else None  # else ended by the caller
        async with PostgresBus.open(self._database, self._streams) as bus:
            for key, request in requests.items():
                command = NewCommand(
                    id=_command_id(origin, key),
                    key=key,
                    request=request,
                    actor=origin.actor,
                    reason=origin.reason,
                    action_id=action_id,
                )
                await request_command(self._database, bus, command)
        waits = (
            wait_for_outcome(self._database, _command_id(origin, key), self._clock)
            for key in requests
        )
        commands = list(zip(requests, await asyncio.gather(*waits), strict=True))
        if any(command.state is not ManualState.DONE for _, command in commands):
            raise ManualOrderError(commands)
        return commands

    def _chosen(self, account: str | None) -> list[AccountKey]:
        if account is None:
            return list(self._accounts)
        check_name("account", account, map(str, self._accounts))
        return [key for key in self._accounts if str(key) == account]


async def preview_close(
    database: Database,
    keys: Sequence[AccountKey],
    symbol: str | None,
    prices: Mapping[str, Decimal],
) -> ClosePreview:
    """Return what closing a symbol, or everything, will do; no lines where nothing is open."""
    lines: list[str] = []
    is_stopped = False
    for key in keys:
        held = [row for row in await list_positions(database, key) if row.quantity]
        held = [row for row in held if symbol in (None, row.symbol)]
        orders = await open_intents(database, key, symbol)
        if not held and not orders:
            continue
        lines.append(
            f"account {key.short}: {_count(len(orders), 'open order')} cancelled,"
            f" {_count(len(held), 'position')} sold at the market"
        )
        lines += [_sale(row, prices.get(row.symbol)) for row in held]
        switch = (await KillSwitch(database, key).all()).get("account")
        is_stopped |= switch is None or not switch.enabled
    return ClosePreview(lines, is_stopped)


def _sale(row: PositionRow, price: Decimal | None) -> str:
    value = abs(row.quantity) * (price or row.average_price)
    note = "" if price else " by its average price"
    name = f" {row.name}" if row.name else ""
    quantity = f"{row.quantity:f}"
    if "." in quantity:
        quantity = quantity.rstrip("0").rstrip(".")
    return f"  {quantity} {row.symbol}{name}, about {value:,.0f} won{note}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _check_number(name: str, value: Decimal) -> None:
    if not value.is_finite() or not 0 < value < MAX_NUMBER:
        raise RefusedError(
            f"{name} is {value}; expected more than 0 and less than {MAX_NUMBER:.0e}"
        )


def outcome_text(commands: Commands) -> str:
    """Return the messages of commands, with their account where there are several."""
    texts = [
        (f"{key.short}: " if len(commands) > 1 else "") + command.result.message
        for key, command in commands
        if command.result is not None
    ]
    return "; ".join(texts) or "nothing is held and no order is open"


def _command_id(origin: CommandOrigin, key: AccountKey) -> UUID:
    return uuid5(origin.id, str(key))
