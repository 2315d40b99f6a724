"""A run with an old epoch sends nothing, and changes neither stop nor switch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from qts.brokers import AccountTakenError
from qts.database import Database
from qts.domain import ManualClock
from qts.outbox import PostgresBus
from qts.risk import FailSafe, KillSwitch, SafetyState, StopRecord, load_stop_records
from qts.risk.stop_state import save_stop_records
from tests.orders.fake_venue import Venue
from tests.orders.kit import STREAMS, SYMBOL, OrderKit
from tests.orders.test_direct import submit

OPENED_AT = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
async def kit(database: Database, clock: ManualClock) -> AsyncIterator[OrderKit]:
    async with PostgresBus.open(database, STREAMS) as bus, database.reserved(2) as orders:
        made = OrderKit(database, bus, Venue(clock), clock, orders=orders)
        await made.open()
        yield made


async def take_over(kit: OrderKit) -> None:
    """Raise the epoch, as the next holder does; the kit keeps its own, 0."""
    await kit.database.execute("UPDATE account SET epoch = epoch + 1")


async def count(kit: OrderKit, table: str) -> int:
    found: int = await kit.database.fetchval(f"SELECT count(*) FROM {table}")  # noqa: S608
    return found


async def test_an_order_of_an_old_epoch_is_not_stored(kit: OrderKit) -> None:
    await take_over(kit)
    with pytest.raises(AccountTakenError, match="nothing was stored"):
        await submit(kit)
    tables = "signal", "order_intent", "order_attempt"
    assert [await count(kit, each) for each in tables] == [0, 0, 0]
    assert kit.venue.placed == []


async def test_an_order_says_under_which_epoch_it_was_sent(kit: OrderKit) -> None:
    await take_over(kit)
    kit.executor.lease.epoch = 1  # type: ignore[misc]
    submitted = await submit(kit)
    await kit.executor.close()
    row = await kit.attempt(submitted.attempt_id)
    assert (row["status"], row["epoch"]) == ("ACKED", 1)


async def test_an_attempt_that_waits_is_left_to_the_next_holder(kit: OrderKit) -> None:
    submitted = await kit.submit()  # without facts: for a worker
    await take_over(kit)
    await kit.work()
    assert (await kit.attempts(submitted.intent_id)) == ["PREPARED"]
    assert kit.venue.placed == []


async def test_a_switch_and_the_fail_safe_stay_as_they_are(kit: OrderKit) -> None:
    old = lambda: 0  # noqa: E731
    safe = FailSafe(kit.database, kit.venue.key, old)
    switch = KillSwitch(kit.database, kit.venue.key, old)
    await take_over(kit)
    await safe.trip("FS042", "of the former run")
    await switch.set(False, "orders", "of the former run")
    assert (await safe.now()).state is SafetyState.NORMAL
    assert (await switch.all())["account"].enabled
    await KillSwitch(kit.database, kit.venue.key).set(False, "kim")  # the operator has no epoch
    assert not (await switch.all())["account"].enabled


async def test_the_state_of_a_stop_stays_as_it_is(kit: OrderKit) -> None:
    key, database = kit.venue.key, kit.database
    record = StopRecord(symbol=SYMBOL, opened_at=OPENED_AT, quantity=1.0, average=100.0)
    await save_stop_records(database, key, [record], 0)
    await take_over(kit)
    await save_stop_records(database, key, [replace(record, quantity=2.0)], 0)
    assert (await load_stop_records(database, key))[SYMBOL].quantity == 1.0
