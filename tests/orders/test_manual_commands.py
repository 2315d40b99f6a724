"""Manual commands: carried out once, by one run, in time, or never."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from decimal import Decimal
from uuid import UUID, uuid4

import pytest

from qts.brokers import AccountLease
from qts.database import Database
from qts.domain import MANUAL, ManualClock, OperationError, RefusedError, Side, SystemClock
from qts.orders import (
    ClosePositions,
    ManualRequest,
    ManualResult,
    ManualState,
    NewCommand,
    PlaceOrder,
    end_command,
    manual_commands,
    read_command,
    request_command,
    start_command,
    wait_for_outcome,
)
from qts.orders.manual_commands import expire_command
from qts.outbox import PostgresBus
from qts.risk import KillSwitch, SafetyMonitor
from qts.strategies import load_strategy
from tests.accounts import PAPER
from tests.orders.kit import STREAMS

ORDER = PlaceOrder(symbol="005930", side=Side.BUY, quantity=Decimal(3), price=Decimal(71_000))
RESULT = ManualResult(message="done")


@pytest.fixture
async def bus(database: Database) -> AsyncIterator[PostgresBus]:
    """A bus, while a run holds the account."""
    lock = AccountLease(database, PAPER, "home", SystemClock(), is_live=False)
    async with PostgresBus.open(database, STREAMS) as bus, lock:
        yield bus


async def request(
    database: Database, bus: PostgresBus, id_: UUID, what: ManualRequest = ORDER
) -> None:
    command = NewCommand(id=id_, key=PAPER, request=what, actor="test", reason="why")
    await request_command(database, bus, command)


async def state_of(database: Database, id_: UUID) -> ManualState:
    found = await read_command(database, id_)
    assert found is not None
    return found.state


async def test_a_request_without_a_run_leaves_nothing(database: Database) -> None:
    async with PostgresBus.open(database, STREAMS) as bus:
        with pytest.raises(OperationError, match=r"no run trades account paper:.*start qts run"):
            await request(database, bus, uuid4())
    assert await database.fetchval("SELECT count(*) FROM manual_command") == 0
    assert await database.fetchval("SELECT count(*) FROM outbox_event") == 0


async def test_a_repeated_request_is_one_command_on_the_bus(
    database: Database, bus: PostgresBus
) -> None:
    id_ = uuid4()
    for _ in range(3):
        await request(database, bus, id_)
    assert await database.fetchval("SELECT count(*) FROM outbox_event") == 1
    for other in (ClosePositions(symbol="005930"), ClosePositions()):
        with pytest.raises(RefusedError, match="is that of another manual command"):
            await request(database, bus, id_, other)
    await start_command(database, PAPER, id_)
    await end_command(database, id_, ManualState.DONE, RESULT)
    await request(database, bus, id_)  # also after its end
    assert await database.fetchval("SELECT count(*) FROM outbox_event") == 1
    assert (await wait_for_outcome(database, id_, SystemClock())).result == RESULT


async def test_a_command_that_is_late_is_withdrawn_and_never_started(
    database: Database, bus: PostgresBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manual_commands, "DEADLINE_S", 0.0)
    waited, taken = uuid4(), uuid4()
    await request(database, bus, waited)
    await request(database, bus, taken)
    ended = await wait_for_outcome(database, waited, SystemClock())
    assert ended.state is ManualState.EXPIRED
    assert ended.result is not None
    assert "nothing was sent" in ended.result.message
    for id_ in (waited, taken):
        assert await start_command(database, PAPER, id_) is None
        assert await state_of(database, id_) is ManualState.EXPIRED


async def test_a_run_takes_the_commands_of_its_account_alone(
    database: Database, bus: PostgresBus
) -> None:
    id_ = uuid4()
    await request(database, bus, id_)
    other = PAPER._replace(account="other")
    assert await start_command(database, other, id_) is None
    started = await start_command(database, PAPER, id_)
    assert started is not None
    assert (started.request, started.is_repeated, started.is_late) == (ORDER, False, False)
    again = await start_command(database, PAPER, id_)
    assert again is not None
    assert again.is_repeated


async def test_every_order_of_steps_ends_a_command_once(
    database: Database, bus: PostgresBus
) -> None:
    """What the run, the next run and the requester do in any order, against the state machine."""
    steps = ("start", "expire", "DONE", "FAILED")
    after = {
        ("REQUESTED", "start"): "STARTED",
        ("REQUESTED", "expire"): "EXPIRED",
        ("STARTED", "start"): "STARTED",
        ("STARTED", "DONE"): "DONE",
        ("STARTED", "FAILED"): "FAILED",
    }
    for order in itertools.product(steps, repeat=3):
        id_, expected = uuid4(), "REQUESTED"
        await request(database, bus, id_)
        for step in order:
            if step == "start":
                await start_command(database, PAPER, id_)
            elif step == "expire":
                await expire_command(database, id_)
            else:
                await end_command(database, id_, ManualState(step), RESULT)
            expected = after.get((expected, step), expected)
            # `start` refuses what has ended, and withdraws nothing that is in time.
            assert await state_of(database, id_) == expected, order


async def test_an_ended_command_does_not_change(database: Database, bus: PostgresBus) -> None:
    id_ = uuid4()
    await request(database, bus, id_)
    await expire_command(database, id_)
    for change in ("state = 'REQUESTED', ended_at = NULL", "reason = 'x'"):
        with pytest.raises(Exception, match="has ended does not change"):
            await database.execute(f"UPDATE manual_command SET {change}")  # noqa: S608 - above


async def test_the_operators_orders_have_no_switch_but_the_accounts(
    database: Database, bus: PostgresBus
) -> None:
    del bus  # it has opened the account
    stop = "SELECT order_stop($1, $2, $3, 'ENTRY')"
    assert await database.fetchval(stop, *PAPER, MANUAL) == "KILL_SWITCH"
    await KillSwitch(database, PAPER).set(True, "test")
    assert await database.fetchval(stop, *PAPER, MANUAL) is None
    assert await database.fetchval(stop, *PAPER, "scalper") == "STRATEGY_OFF"
    monitor = SafetyMonitor(database, PAPER, ManualClock())
    await monitor.refresh()
    assert monitor.enabled(MANUAL)
    assert not monitor.enabled("scalper")


def test_no_strategy_may_pass_for_the_operator() -> None:
    with pytest.raises(RefusedError, match="its key is 'manual'"):
        load_strategy("tests.orders.impostor:Impostor")
