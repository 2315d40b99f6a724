"""Two at one order: a cancel beside its outcome, a market opened beside an unknown one."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from qts.brokers.error_boundary import translate_order_errors
from qts.database import Database
from qts.domain import IntentType, ManualClock, OrderRequest, OrderState, RefusedError, Side
from qts.orders import SubmitResult
from qts.orders.attempts import resume_resolved
from qts.orders.resolve import resolve_unknown
from qts.outbox import OutboxEvent
from qts.venues import RateLimitedError
from tests.orders.fake_venue import lost_reply
from tests.orders.kit import PRICE, SYMBOL, OrderKit, open_kit
from tests.outbox.kit import until


class Cancelling:
    """A cancel that is stopped just before its commit."""

    def __init__(
        self, kit: OrderKit, submitted: SubmitResult, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self._floor, self._intent = kit, submitted.intent_id
        self._written, self._go_on = asyncio.Event(), asyncio.Event()
        publish = kit.bus.publish

        async def held(tx: Any, event: OutboxEvent) -> Any:
            told = await publish(tx, event)
            if "Cancel" in repr(event):
                self._written.set()
                await self._go_on.wait()
            return told

        monkeypatch.setattr(kit.bus, "publish", held)

    async def begin(self) -> None:
        self._asked = asyncio.create_task(self._floor.desk.cancel(self._intent))
        await self._written.wait()

    async def end(self) -> None:
        """Once somebody waits for what it holds."""
        await until(lambda: somebody_waits(self._floor.database))
        self._go_on.set()
        assert await self._asked is True


async def somebody_waits(database: Database) -> bool:
    return bool(await database.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))


async def test_a_throttled_order_that_is_being_cancelled_is_not_tried_again(
    kit: OrderKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, answer = asyncio.Event(), asyncio.Event()

    async def slow(_request: OrderRequest) -> str:
        sent.set()
        await answer.wait()
        raise RateLimitedError("429")

    with monkeypatch.context() as patch:
        patch.setattr(kit.venue, "place", slow)
        submitted = await kit.submit()
        cancelling = Cancelling(kit, submitted, patch)
        working = asyncio.create_task(kit.work())
        await sent.wait()
        await cancelling.begin()
        answer.set()
        await cancelling.end()
        await working
    await kit.work()
    await kit.work_later()
    assert kit.venue.placed == []
    assert (await kit.intent(submitted.intent_id))[0] == "CANCELED"


async def test_an_order_that_is_found_while_it_is_being_cancelled_is_cancelled(
    kit: OrderKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.venue.after = lost_reply
    submitted = await kit.submit()
    await kit.work()
    cancelling = Cancelling(kit, submitted, monkeypatch)
    asked, answer = asyncio.Event(), asyncio.Event()
    noted, commit = asyncio.Event(), asyncio.Event()
    find, note = kit.venue.find_order, kit.context.ledger.apply_order

    async def finding(*words: Any) -> Any:
        found = await find(*words)
        asked.set()
        await answer.wait()
        return found

    async def noting(*words: Any) -> Any:
        changes = await note(*words)
        noted.set()
        await commit.wait()
        return changes

    monkeypatch.setattr(kit.venue, "find_order", finding)
    monkeypatch.setattr(kit.context.ledger, "apply_order", noting)
    looking = asyncio.create_task(resolve_unknown(kit.context))
    await asked.wait()
    await cancelling.begin()
    answer.set()
    await cancelling.end()
    await noted.wait()
    await kit.work()  # the cancel finds no order yet: it is left to whoever acknowledges it
    commit.set()
    await looking
    await kit.work_later()
    assert await kit.attempts(submitted.intent_id) == ["ACKED"]
    assert kit.venue.cancels == ["V1"]


async def test_a_market_is_not_opened_beside_an_outcome_that_gets_unknown(kit: OrderKit) -> None:
    name = await kit.order()
    await kit.context.ledger.record_fill(kit.venue.trade(name, Decimal(2), PRICE))
    kit.venue.after = lost_reply
    await kit.submit()
    await kit.work()
    await kit.submit(side=Side.SELL, intent_type=IntentType.EXIT_STOPLOSS)
    async with kit.database.transaction() as tx:
        await tx.execute("UPDATE order_attempt SET status = 'REJECTED' WHERE status = 'UNKNOWN'")
        assert await resume_resolved(tx, kit.venue.key, SYMBOL)
        leaving = asyncio.create_task(kit.work())  # its answer is lost, too
        await until(lambda: somebody_waits(kit.database))
    await leaving
    assert await kit.suspended() == {SYMBOL: "UNKNOWN"}
    async with kit.database.transaction() as tx:
        assert not await resume_resolved(tx, kit.venue.key, SYMBOL)


async def test_a_late_answer_that_names_another_order_is_told(
    database: Database, clock: ManualClock
) -> None:
    """Without names of ours an order placed by hand was taken for it meanwhile."""
    async with open_kit(database, clock, named=False) as kit:
        sent, answer = asyncio.Event(), asyncio.Event()

        async def meanwhile(_order_id: str) -> None:
            sent.set()
            await answer.wait()

        kit.venue.meanwhile = meanwhile
        submitted = await kit.submit()
        working = asyncio.create_task(kit.work())
        await sent.wait()
        its = kit.venue.book.pop("V1")  # the venue lists it late
        twin = kit.venue.by_hand(SYMBOL, Side.BUY, Decimal(2))
        await clock.advance(7)  # the sender's time is over
        await kit.reconciler.reconcile_now()
        row = await kit.attempt(submitted.attempt_id)
        assert (row["status"], row["broker_order_id"]) == ("ACKED", twin)
        kit.venue.book["V1"] = its
        answer.set()
        await working
        assert (await kit.fail_safe.now()).state == "FAIL"


async def test_a_cancel_that_a_wrong_key_stopped_is_not_done(
    kit: OrderKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted = await kit.submit()
    await kit.work()

    async def cancel(_order_id: str) -> None:
        with translate_order_errors():
            raise RefusedError("venues.upbit.access_key or secret_key is wrong (HTTP 401)")

    with monkeypatch.context() as patch:
        patch.setattr(kit.venue, "cancel", cancel)
        assert await kit.desk.cancel(submitted.intent_id)
        await kit.work()
    await kit.work_later()  # the key is right again
    assert kit.venue.book["V1"].state is OrderState.CANCELLED
