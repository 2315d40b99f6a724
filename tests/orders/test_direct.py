"""Orders stored as SENT with a claimed command, and sent by the process that stored them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace

from qts.database import Database
from qts.domain import IntentType, ManualClock, OutcomeUnknownError, Side, TimeLimit
from qts.orders import SubmitResult, executor, freeze_position, load_account_state
from qts.orders.ledger_values import SQL
from qts.outbox import TRADE_COMMAND, TRADE_EXIT, PostgresBus
from qts.outbox.testing import RecordingBus
from qts.pipeline.risk_snapshot import account_facts, trading_day_start
from qts.risk import AccountFacts, SafetyState
from tests.orders.fake_venue import Venue, lost_reply
from tests.orders.kit import STREAMS, SYMBOL, OrderKit, approved

STOP = {"side": Side.SELL, "intent_type": IntentType.EXIT_STOPLOSS, "quantity": Decimal(2)}


@pytest.fixture
async def kit(database: Database, clock: ManualClock) -> AsyncIterator[OrderKit]:
    async with PostgresBus.open(database, STREAMS) as bus, database.reserved(2) as orders:
        made = OrderKit(database, bus, Venue(clock), clock, orders=orders)
        await made.open()
        yield made


async def facts(kit: OrderKit, symbol: str = SYMBOL) -> AccountFacts:
    now = kit.clock.now()
    day = trading_day_start(now)
    state = await load_account_state(kit.database, kit.venue.key, day, now)
    return account_facts(symbol, state)


async def submit(kit: OrderKit, **more: Any) -> SubmitResult:
    """Submit on facts that were read just before."""
    known = await facts(kit, more.get("symbol", SYMBOL))
    return await kit.desk.submit(approved(kit.clock, known, **more))


async def commands(kit: OrderKit) -> dict[str, int]:
    rows = await kit.database.fetch(
        "SELECT status, count(*) AS n FROM outbox_event_all"
        " WHERE event_type = 'CreateOrderAttempt' GROUP BY status"
    )
    return {row["status"]: row["n"] for row in rows}


async def stored(kit: OrderKit) -> int:
    count: int = await kit.database.fetchval("SELECT count(*) FROM order_intent")
    return count


@pytest.mark.parametrize("order", [{}, STOP])
async def test_an_order_is_sent_without_a_worker(kit: OrderKit, order: dict[str, Any]) -> None:
    if order:
        await kit.order()
        await kit.reconciler.handle_report(kit.venue.trade("V1", Decimal(2), Decimal(100)))
    before = len(kit.venue.placed)
    submitted = await submit(kit, **order)
    row = await kit.attempt(submitted.attempt_id)
    assert row["status"] in ("SENT", "ACKED")
    await kit.executor.close()
    assert await kit.attempts(submitted.intent_id) == ["ACKED"]
    assert len(kit.venue.placed) == before + 1
    assert set(await commands(kit)) == {"DONE"}
    assert await kit.work() == []
    assert "OrderAccepted" in await kit.events()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("position", Decimal(1)),
        ("pending_buy", Decimal(1)),
        ("pending_sell", Decimal(1)),
        ("held", Decimal(1)),
        ("pending", Decimal(1)),
        ("pending_orders", 1),
        ("latest_orders", -1),
    ],
)
async def test_facts_that_changed_store_nothing(kit: OrderKit, field: str, value: Any) -> None:
    """The figure in memory differs from the ledger's: the order is decided again."""
    other = replace(await facts(kit), **{field: value})
    submitted = await kit.desk.submit(approved(kit.clock, other))
    assert submitted.is_outdated
    assert submitted.attempt_id is None
    assert (await stored(kit), await commands(kit), kit.venue.placed) == (0, {}, [])


async def test_an_order_that_was_sent_since_is_seen(kit: OrderKit, clock: ManualClock) -> None:
    """Only the latest orders are counted again: the statement does not grow with the day's."""
    await kit.order()
    await kit.executor.close()
    known = await facts(kit)
    assert known.latest_orders == 1
    await clock.advance(60)
    later = await facts(kit, "KRW-ETH")
    assert later.latest_orders == 0
    assert (await kit.desk.submit(approved(kit.clock, later, symbol="KRW-ETH"))).attempt_id
    await kit.executor.close()
    unnoticed = replace(await facts(kit, "KRW-XRP"), latest_orders=0)
    assert (await kit.desk.submit(approved(kit.clock, unnoticed, symbol="KRW-XRP"))).is_outdated


async def test_the_statement_asks_for_stops_without_calls(kit: OrderKit) -> None:
    """The planner merges both functions into the plan; a call costs as much as an insert."""
    async with kit.database.connection() as connection:
        await connection.execute("SET plan_cache_mode = force_generic_plan")
        await connection.execute(f"PREPARE sending AS {SQL.send_directly}")
        arguments = ", ".join(["NULL"] * 38)
        rows = await connection.fetch(f"EXPLAIN (VERBOSE) EXECUTE sending ({arguments})")
    plan = "\n".join(row[0] for row in rows)
    assert [each for each in ("kill_switch", "market_state", "safety_state") if each in plan] == [
        "kill_switch",
        "market_state",
        "safety_state",
    ]
    assert not re.search(r"Function Scan|_stops?\(", plan)


async def test_an_exit_depends_on_its_symbol_alone(kit: OrderKit) -> None:
    await kit.order()
    await kit.reconciler.handle_report(kit.venue.trade("V1", Decimal(2), Decimal(100)))
    known = replace(await facts(kit), held=Decimal(9), pending=Decimal(9), latest_orders=-1)
    submitted = await kit.desk.submit(approved(kit.clock, known, **STOP))
    await kit.executor.close()
    assert await kit.attempts(submitted.intent_id) == ["ACKED"]


async def test_two_entries_on_the_same_facts_do_not_both_leave(kit: OrderKit) -> None:
    """Each fits the limits alone; the second has to be decided with the first."""
    known = {symbol: await facts(kit, symbol) for symbol in (SYMBOL, "KRW-ETH")}
    results = [
        await kit.desk.submit(approved(kit.clock, known[symbol], symbol=symbol)) for symbol in known
    ]
    await kit.executor.close()
    assert [each.is_outdated for each in results] == [False, True]
    assert len(kit.venue.placed) == 1


async def test_a_stop_of_the_ledger_holds_whatever_is_in_memory(kit: OrderKit) -> None:
    known = await facts(kit)
    await kit.kill.set(False, actor="tests", reason="off")
    off = await kit.desk.submit(approved(kit.clock, known))
    assert (off.attempt_id, off.stopped) == (None, "KILL_SWITCH")
    await kit.kill.set(True, actor="tests", reason="on")
    now = kit.clock.now()
    await freeze_position(kit.database, kit.bus, kit.venue.key, SYMBOL, "tests", now)
    frozen = await kit.desk.submit(approved(kit.clock, known))
    await kit.work()
    assert await kit.attempts(frozen.intent_id) == ["SUSPENDED"]
    assert kit.venue.placed == []


async def test_an_entry_behind_another_of_its_symbol_waits_for_it(kit: OrderKit) -> None:
    """The first has no reply yet: the second is a command behind it, and sent afterwards."""
    reply = asyncio.Event()

    async def wait(_order_id: str) -> None:
        await reply.wait()

    kit.venue.meanwhile = wait
    first = await submit(kit)
    second = await submit(kit)
    assert await kit.attempts(second.intent_id) == ["PREPARED"]
    assert await kit.work() == []
    other = await submit(kit, symbol="KRW-ETH")  # another symbol does not wait
    assert await kit.attempts(other.intent_id) == ["SENT"]
    assert await commands(kit) == {"PENDING": 1, "PROCESSING": 2}
    kit.venue.meanwhile = None
    reply.set()
    await kit.executor.close()
    await kit.work()
    assert await kit.attempts(first.intent_id) == await kit.attempts(second.intent_id) == ["ACKED"]
    assert len(kit.venue.placed) == 3


async def test_a_paused_stream_holds_orders_back(kit: OrderKit) -> None:
    await kit.bus.pause(TRADE_COMMAND)
    submitted = await submit(kit)
    await kit.executor.close()
    assert await kit.attempts(submitted.intent_id) == ["PREPARED"]
    await kit.bus.resume(TRADE_COMMAND)
    await kit.work()
    assert await kit.attempts(submitted.intent_id) == ["ACKED"]


async def test_before_the_reconciliation_a_command_waits_for_a_worker(
    kit: OrderKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kit.executor, "_is_reconciled", lambda: False)
    submitted = await submit(kit)
    assert await kit.attempts(submitted.intent_id) == ["PREPARED"]


async def test_a_lost_lock_between_commit_and_request_sends_nothing(
    kit: OrderKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([True, False])
    monkeypatch.setattr(kit.executor, "_is_reconciled", lambda: next(answers))
    submitted = await submit(kit)
    await kit.executor.close()
    assert (await kit.attempts(submitted.intent_id))[0] == "THROTTLED"
    assert kit.venue.placed == []


async def test_a_reconciliation_between_commit_and_request_is_no_failure_to_send(
    kit: OrderKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream opens again while orders leave: they wait, and the fail-safe stays NORMAL."""
    answers = iter([True, False] * 3)
    monkeypatch.setattr(kit.executor, "_is_reconciled", lambda: next(answers))
    for symbol in ("KRW-BTC", "KRW-ETH", "KRW-XRP"):
        submitted = await submit(kit, symbol=symbol)
        await kit.executor.close()
        assert (await kit.attempts(submitted.intent_id))[0] == "THROTTLED"
    assert kit.venue.placed == []
    assert [entry.code for entry in await kit.fail_safe.log()] == []
    assert (await kit.fail_safe.now()).state is SafetyState.NORMAL


async def test_a_delay_between_commit_and_request_sends_nothing(
    kit: OrderKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = kit.executor.start

    async def delayed(attempt: Any, claim: Any, _deadline: Any) -> None:
        await start(attempt, claim, TimeLimit(kit.clock, 0.0))

    monkeypatch.setattr(kit.executor, "start", delayed)
    submitted = await submit(kit)
    await kit.executor.close()
    assert (await kit.attempts(submitted.intent_id))[0] == "THROTTLED"
    assert kit.venue.placed == []


@pytest.mark.parametrize(("order", "stream"), [({}, TRADE_COMMAND), (STOP, TRADE_EXIT)])
async def test_the_order_of_a_dead_process_is_looked_up_and_never_sent(
    kit: OrderKit, monkeypatch: pytest.MonkeyPatch, order: dict[str, Any], stream: str
) -> None:
    if order:
        await kit.order()
        await kit.reconciler.handle_report(kit.venue.trade("V1", Decimal(2), Decimal(100)))
    before = len(kit.venue.placed)

    async def die(*_order: Any) -> None:
        """Send nothing, as a process that dies after the commit."""

    monkeypatch.setattr(kit.executor, "start", die)
    submitted = await submit(kit, **order)
    assert await kit.work() == []  # claimed: no worker takes it
    await kit.database.execute(
        "UPDATE outbox_event SET locked_until = clock_timestamp() - interval '1 second'"
        " WHERE stream = $1",
        stream,
    )
    await kit.work_stale(stream)
    assert await kit.attempts(submitted.intent_id) == ["UNKNOWN"]
    assert len(kit.venue.placed) == before


async def test_an_unknown_outcome_completes_the_command(kit: OrderKit) -> None:
    kit.venue.after = lost_reply
    submitted = await submit(kit)
    await kit.executor.close()
    assert await kit.attempts(submitted.intent_id) == ["UNKNOWN"]
    assert await commands(kit) == {"DONE": 1}


async def test_a_commit_whose_reply_is_lost_is_sent_once(
    kit: OrderKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, lost = kit.executor.store_sent, iter([True])

    async def store_sent(*order: Any) -> str:
        code = await store(*order)
        if next(lost, False):
            raise OutcomeUnknownError("the reply was lost")
        return code

    monkeypatch.setattr(kit.executor, "store_sent", store_sent)
    monkeypatch.setattr(kit.desk, "_clock", ManualClock(kit.clock.now()))
    monkeypatch.setattr("qts.orders.manager.COMMIT_RETRY_INTERVAL_S", 0)
    submitted = await submit(kit)
    await kit.executor.close()
    assert submitted.is_new
    assert await kit.attempts(submitted.intent_id) == ["ACKED"]
    assert len(kit.venue.placed) == 1


async def test_a_repeated_signal_is_ordered_once(kit: OrderKit) -> None:
    signal_id = uuid4()
    first = await submit(kit, signal_id=signal_id)
    again = await submit(kit, signal_id=signal_id)
    await kit.executor.close()
    assert not again.is_new
    assert again.intent_id == first.intent_id
    assert len(kit.venue.placed) == 1


async def test_beyond_its_capacity_a_worker_sends(
    kit: OrderKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "MAX_DIRECT", 0)
    submitted = await submit(kit)
    assert await kit.attempts(submitted.intent_id) == ["PREPARED"]


async def test_another_bus_takes_commands_alone(database: Database, clock: ManualClock) -> None:
    async with PostgresBus.open(database, STREAMS) as bus, database.reserved(1) as orders:
        made = OrderKit(database, RecordingBus(bus), Venue(clock), clock, orders=orders)  # type: ignore[arg-type]
        await made.open()
        submitted = await submit(made)
        assert await made.attempts(submitted.intent_id) == ["PREPARED"]
