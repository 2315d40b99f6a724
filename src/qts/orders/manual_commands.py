"""Manual commands: orders of the operator, requested in one process and carried out by a run.

    request ── one transaction: row, command on the bus ──▶ REQUESTED
    run     ── takes it before its deadline ──▶ STARTED ──▶ DONE · REFUSED · FAILED
               or nobody does ──▶ EXPIRED, by the requester or by the next run

Invariants: a command that is not STARTED by its deadline is never carried out. A request with a
known id adds nothing: it is answered with the outcome of the first. The orders of a command have
signal ids that are computed from its id, so that a run that carries it out again, after the one
before it died, does not store them twice.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec

from qts.brokers import is_account_locked
from qts.database import Database, Row
from qts.domain import AccountKey, Clock, OperationError, RefusedError, Side
from qts.orders.ledger_values import SQL
from qts.orders.messages import CarryOutManually
from qts.outbox import TRADE_COMMAND, TRADE_EXIT, EventBus, OutboxEvent

DEADLINE_S = 20.0  # from the request; a handler has its fills to wait for after that
WAIT_S = DEADLINE_S + 25.0  # an order without an answer is looked up meanwhile
POLL_S = 0.1


class PlaceOrder(msgspec.Struct, frozen=True, kw_only=True, tag="place", tag_field="kind"):
    symbol: str
    side: Side
    quantity: Decimal
    price: Decimal | None = None  # None: at the market


class ClosePositions(msgspec.Struct, frozen=True, kw_only=True, tag="close", tag_field="kind"):
    """Cancel the open orders of a symbol and sell what is held; without one, of all symbols."""

    symbol: str | None = None


ManualRequest = PlaceOrder | ClosePositions


class ManualState(StrEnum):
    REQUESTED = "REQUESTED"
    STARTED = "STARTED"
    DONE = "DONE"
    REFUSED = "REFUSED"
    FAILED = "FAILED"
    EXPIRED = "EXPIRED"


class ManualOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An order of a command, as the ledger has it."""

    intent_id: UUID
    symbol: str
    side: str
    quantity: Decimal
    filled: Decimal
    outcome: str  # FILLED, OPEN, CANCELLED, or the state of its attempt
    reason: str = ""


class ManualRefusal(msgspec.Struct, frozen=True):
    symbol: str
    code: str
    text: str


class ManualResult(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    orders: list[ManualOrder] = []
    cancelled: list[UUID] = []  # intents whose open order was cancelled
    refusals: list[ManualRefusal] = []  # by the gate


class ManualCommand(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    request: ManualRequest
    actor: str
    reason: str
    state: ManualState
    expires_at: datetime
    result: ManualResult | None = None
    is_repeated: bool = False  # a run started it before
    is_late: bool = False  # its deadline is over


class OutcomePendingError(OperationError):
    """Manual command that a run has started and not ended."""


class NewCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command to request; `action_id` is its row in the log of actions."""

    id: UUID
    key: AccountKey
    request: ManualRequest
    actor: str
    reason: str
    action_id: int | None = None


async def request_command(database: Database, bus: EventBus, command: NewCommand) -> None:
    """Store a command and hand it to the run of the account; refuse where there is none."""
    async with database.transaction() as tx:
        known = await tx.fetchrow(SQL.manual_command, command.id)
        if known is not None:
            _check_same(known, command)
            return
        if not await is_account_locked(database, command.key):
            raise OperationError(
                f"no run trades account {command.key.short}, and nothing was requested; start"
                " qts run, then repeat this"
            )
        added = await tx.fetchval(
            SQL.add_manual_command,
            command.id,
            *command.key,
            command.request,
            command.actor,
            command.reason,
            command.action_id,
            timedelta(seconds=DEADLINE_S),
        )
        if added is None:  # by another process, a moment ago
            return
        is_exit = isinstance(command.request, ClosePositions)
        event = OutboxEvent.of(
            TRADE_EXIT if is_exit else TRADE_COMMAND,
            CarryOutManually(command.id),
            ("ManualCommand", str(command.id)),
            account=command.key,
        )
        await bus.publish(tx, event)


async def wait_for_outcome(database: Database, command_id: UUID, clock: Clock) -> ManualCommand:
    """Return a command that has ended; withdraw it where no run starts it before its deadline.

    Raise OutcomePendingError when it is started and not ended after `WAIT_S`.
    """
    end_ns = clock.monotonic_ns() + round(WAIT_S * 1e9)
    while True:
        command = await read_command(database, command_id)
        if command is None:
            raise AssertionError("a command is requested before its outcome is waited for")
        if command.result is not None:
            return command
        if command.state is ManualState.REQUESTED and command.is_late:
            await expire_command(database, command_id)
        elif clock.monotonic_ns() >= end_ns:
            raise OutcomePendingError(
                "the run has taken the command and not ended it; if the run died, the next qts run"
                " ends it. The same id asks for its outcome and orders nothing again"
            )
        else:
            await clock.sleep(POLL_S)


async def read_command(database: Database, command_id: UUID) -> ManualCommand | None:
    row = await database.fetchrow(SQL.manual_command, command_id)
    return None if row is None else _command(row)


async def start_command(
    database: Database, key: AccountKey, command_id: UUID
) -> ManualCommand | None:
    """Take a command for this run; None where it has ended or its deadline is over."""
    row = await database.fetchrow(SQL.start_manual_command, command_id, *key)
    if row is not None:
        return _command(row)
    found = await read_command(database, command_id)
    if found is not None and found.state is ManualState.REQUESTED and found.is_late:
        await expire_command(database, command_id)
    return None


async def expire_command(database: Database, command_id: UUID) -> None:
    """End a command that no run has started."""
    result = ManualResult(message="no run took it before its deadline; nothing was sent")
    await _end(database, command_id, ManualState.REQUESTED, ManualState.EXPIRED, result)


async def end_command(
    database: Database, command_id: UUID, state: ManualState, result: ManualResult
) -> None:
    """Store the outcome of a started command, here and in the log of actions."""
    await _end(database, command_id, ManualState.STARTED, state, result)


async def _end(
    database: Database,
    command_id: UUID,
    before: ManualState,
    after: ManualState,
    result: ManualResult,
) -> None:
    await database.fetch_idempotent(
        SQL.end_manual_command, command_id, before, after, result, result.message
    )


async def open_intents(
    database: Database, key: AccountKey, symbol: str | None = None
) -> list[tuple[UUID, str]]:
    """Return the intents whose order is, or may become, open, with their symbols."""
    rows = await database.fetch(SQL.open_intents, *key, symbol)
    return [(row["id"], row["symbol"]) for row in rows]


async def intents_of_signals(
    database: Database, key: AccountKey, signal_ids: list[UUID]
) -> list[UUID]:
    """Return the intents that signals have, oldest first."""
    rows = await database.fetch(SQL.intents_of_signals, *key, signal_ids)
    return [row["id"] for row in rows]


def _check_same(known: Row, command: NewCommand) -> None:
    given: Any = msgspec.to_builtins(command.request)
    if (known["broker"], known["account"], known["request"]) != (*command.key, given):
        raise RefusedError(
            f"id {command.id} is that of another manual command ({known['request']}); leave --id"
            " out for a new one"
        )


def _command(row: Row) -> ManualCommand:
    result = row["result"]
    return ManualCommand(
        id=row["id"],
        request=msgspec.convert(row["request"], ManualRequest),
        actor=row["actor"],
        reason=row["reason"],
        state=ManualState(row["state"]),
        expires_at=row["expires_at"],
        result=None if result is None else msgspec.convert(result, ManualResult),
        is_repeated=row["is_repeated"],
        is_late=row["is_late"],
    )
