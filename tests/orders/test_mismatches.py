"""Positions that differ from the venue's holdings: what is raised, when, and how it ends."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any, cast

import pytest

from qts.brokers import AccountLease
from qts.database import Database
from qts.domain import Account, AccountKey, ManualClock, Side, SystemClock, UnreachableError
from qts.orders import Reconcile, resolve_manually
from qts.orders.attempts import lock_attempt, mark_sent
from qts.orders.engine import ExecutionEngine
from qts.outbox import TRADE_COMMAND, OutboxEvent
from qts.outbox.claims import Claims
from qts.pipeline import Portfolio
from qts.pipeline.position_sync import PositionSync
from tests.accounts import VENUE
from tests.instruments import LISTED
from tests.orders.fake_venue import lost_reply
from tests.orders.kit import PRICE, START, STREAMS, SYMBOL, OrderKit, open_kit
from tests.orders.test_reconcile import _running
from tests.outbox.kit import until

D = Decimal


@pytest.fixture(autouse=True)
async def traded(database: Database) -> None:
    """QTS has traded the symbols: what differs in others would be the baseline."""
    for symbol in (SYMBOL, "KRW-ETH"):
        await database.execute(
            "WITH s AS (INSERT INTO signal (id, strategy_key, symbol, side, reason, decided_at)"
            " VALUES (gen_random_uuid(), 'scalper', $3, 'BUY', '', now()) RETURNING id)"
            " INSERT INTO order_intent (id, signal_id, intent_type, broker, account, strategy_key,"
            " symbol, side, order_type, quantity, price, approved_at, expires_at, status,"
            " reason_code) SELECT gen_random_uuid(), id, 'ENTRY', $1, $2, 'scalper', $3, 'BUY',"
            " 'LIMIT', 1, 100, now(), now(), 'CANCELED', 'EXPIRED' FROM s",
            *VENUE,
            symbol,
        )


async def raised(kit: OrderKit) -> list[str]:
    rows = await kit.database.fetch("SELECT code FROM safety_log ORDER BY id")
    return [row["code"] for row in rows]


async def test_a_mismatch_in_two_reconciliations_is_raised_once(kit: OrderKit) -> None:
    kit.venue.external[SYMBOL] = D(6)
    await kit.reconciler.reconcile_now()
    assert await raised(kit) == []
    for _ in range(4):
        await kit.reconciler.reconcile_now()
    assert await raised(kit) == ["FS070"]
    safety = await kit.fail_safe.now()
    assert (safety.state, safety.code) == ("FAIL", "FS070")
    assert "KRW-BTC 0 in the ledger, 6 at the venue" in safety.message


async def test_a_mismatch_that_is_gone_at_the_next_look_is_no_error(
    kit: OrderKit, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        kit.venue.external[SYMBOL] = D(6)
        await kit.reconciler.reconcile_now()
        kit.venue.external.clear()
        await kit.reconciler.reconcile_now()
    assert await raised(kit) == []
    assert '"level": "error"' not in capfd.readouterr().err


async def test_a_mismatch_after_a_restart_is_not_a_second_failure(
    database: Database, clock: ManualClock
) -> None:
    for _ in range(2):
        async with open_kit(database, clock) as kit:
            kit.venue.external[SYMBOL] = D(6)
            for _ in range(2):
                await kit.reconciler.reconcile_now()
            assert await raised(kit) == ["FS070"]
            assert (await kit.fail_safe.now()).state == "FAIL"


async def test_a_new_mismatch_is_raised_after_a_release(kit: OrderKit) -> None:
    kit.venue.external[SYMBOL] = D(6)
    for _ in range(2):
        await kit.reconciler.reconcile_now()
    await kit.fail_safe.release("owner", "known")
    for _ in range(2):
        await kit.reconciler.reconcile_now()
    assert await raised(kit) == ["FS070", "RELEASE"]
    kit.venue.external["KRW-ETH"] = D(1)
    for _ in range(2):
        await kit.reconciler.reconcile_now()
    assert await raised(kit) == ["FS070", "RELEASE", "FS070"]


async def test_the_second_look_comes_soon(database: Database) -> None:
    """Not after reconcile_every_s, a minute."""
    async with open_kit(database, SystemClock()) as kit, _running(kit):
        await until(lambda: _is_reconciled(kit))
        kit.venue.external[SYMBOL] = D(6)
        kit.reconciler.request("test")
        await until(lambda: _is_raised(kit), 20)


async def _is_reconciled(kit: OrderKit) -> bool:
    return kit.reconciler.last is not None


async def _is_raised(kit: OrderKit) -> bool:
    return await raised(kit) == ["FS070"]


async def test_a_clean_reconciliation_has_no_difference_and_an_answer(kit: OrderKit) -> None:
    assert await kit.reconciler.reconciles_cleanly()
    kit.venue.external[SYMBOL] = D(6)
    assert not await kit.reconciler.reconciles_cleanly()
    kit.venue.external.clear()
    kit.venue.is_away = True
    assert not await kit.reconciler.reconciles_cleanly()


async def test_a_mismatch_that_an_unknown_attempt_may_explain_is_not_raised_yet(
    database: Database, clock: ManualClock
) -> None:
    async with open_kit(database, clock, named=False) as kit:
        kit.venue.after, kit.venue.lag_s = lost_reply, 3600
        submitted = await kit.submit(quantity=D(2))
        await kit.work()
        kit.venue.external[SYMBOL] = D(2)  # the holding changes before the order is listed
        for _ in range(3):
            assert (await kit.reconciler.reconcile_now()).differences
        assert "FS070" not in await raised(kit)
        kit.venue.external.clear()
        kit.venue.lag_s = 0
        kit.venue.trade("V1", D(2), PRICE)
        for _ in range(2):
            assert (await kit.reconciler.reconcile_now()).differences == ()
        assert await kit.attempts(submitted.intent_id) == ["ACKED"]
        assert "FS070" not in await raised(kit)


@pytest.mark.parametrize("held", [D(3), D(-1)])
async def test_a_mismatch_that_an_unknown_attempt_does_not_explain_is_raised(
    database: Database, clock: ManualClock, held: Decimal
) -> None:
    async with open_kit(database, clock, named=False) as kit:
        kit.venue.before = lost_reply
        await kit.submit(quantity=D(2))
        await kit.work()
        kit.venue.external[SYMBOL] = held  # more than was ordered, or the other side
        for _ in range(2):
            await kit.reconciler.reconcile_now()
        assert "FS070" in await raised(kit)


async def test_a_mismatch_is_raised_once_the_operator_has_to_decide(
    database: Database, clock: ManualClock
) -> None:
    async with open_kit(database, clock, named=False) as kit:
        kit.venue.before = lost_reply
        await kit.submit(quantity=D(2))
        await kit.work()
        kit.venue.external[SYMBOL] = D(2)
        await clock.advance(kit.context.config.absent_after_s + 1)
        assert (await kit.reconciler.reconcile_now()).resolved.waiting == 1
        for _ in range(2):
            assert (await kit.reconciler.reconcile_now()).resolved.ambiguous == 1
        assert "FS070" in await raised(kit)


# -- symbols that trade all the time


@pytest.mark.parametrize("external", [D(0), D(6)], ids=["agrees", "differs"])
@pytest.mark.parametrize("ledger", ["ahead", "behind"])
async def test_a_symbol_that_trades_in_every_look_is_judged_by_its_fills(
    database: Database, monkeypatch: pytest.MonkeyPatch, ledger: str, external: Decimal
) -> None:
    """The venue's reply may miss a fill that the ledger has, and the other way round."""
    async with open_kit(database, SystemClock()) as kit:
        name = await kit.order(quantity=D(100))
        read: Callable[[], Awaitable[Account]] = kit.venue.account

        async def reading(*_: Any) -> Account:
            if ledger == "behind":
                kit.venue.trade(name, D(1), PRICE)
                return await read()
            account = await read()
            for quantity in (D(2), D(3)):
                fill = kit.venue.trade(name, quantity, PRICE)
                await kit.reconciler.handle_report(fill)
            return account

        monkeypatch.setattr(kit.venue, "account", reading)
        kit.venue.external[SYMBOL] = external
        for _ in range(3):
            report = await kit.reconciler.reconcile_now()
            assert bool(report.differences) == bool(external)
        assert await raised(kit) == (["FS070"] if external else [])


# -- orders of attempts that were given up


async def test_a_late_order_without_a_client_order_id_is_raised_and_linked(
    database: Database, clock: ManualClock
) -> None:
    async with open_kit(database, clock, named=False) as kit:
        kit.venue.after, kit.venue.lag_s = lost_reply, 3600
        submitted = await kit.submit()
        await kit.work()
        await clock.advance(kit.context.config.absent_after_s + 1)
        await kit.reconciler.reconcile_now()
        assert await kit.attempts(submitted.intent_id) == ["ABSENT"]
        kit.venue.lag_s = 0
        kit.venue.trade("V1", D(2), PRICE)
        for _ in range(3):
            await kit.reconciler.reconcile_now()
        safety = await kit.fail_safe.now()
        assert (safety.state, safety.code) == ("FAIL", "FS043")
        assert f"qts orders resolve {submitted.attempt_id} --as V1" in safety.message
        assert await raised(kit) == ["FS043"]
        assert submitted.attempt_id is not None
        await resolve_manually(database, kit.bus, submitted.attempt_id, "V1", clock)
        assert (await kit.position())[0] == 2
        assert (await kit.reconciler.reconcile_now()).differences == ()
        assert await kit.attempts(submitted.intent_id) == ["ABSENT"]


async def test_another_order_is_not_taken_for_one_that_was_given_up(
    database: Database, clock: ManualClock
) -> None:
    async with open_kit(database, clock, named=False) as kit:
        kit.venue.before = lost_reply
        await kit.submit()
        await kit.work()
        await clock.advance(kit.context.config.absent_after_s + 1)
        assert (await kit.reconciler.reconcile_now()).resolved.absent == 1
        kit.venue.by_hand(SYMBOL, Side.BUY, D(3))
        kit.venue.by_hand(SYMBOL, Side.SELL, D(2))
        await kit.reconciler.reconcile_now()
        assert await raised(kit) == []


# -- the comparison at the stop


@asynccontextmanager
async def engine(kit: OrderKit) -> AsyncIterator[ExecutionEngine]:
    positions = PositionSync(Portfolio(kit.clock, LISTED), cast("Any", None), {}, kit.clock)
    async with AccountLease(kit.database, kit.venue.key, "", kit.clock, is_live=False) as lease:
        kit.executor.lease = lease
        yield ExecutionEngine(kit.context, lambda _update: None, positions, lease)


def after_reads(kit: OrderKit, monkeypatch: pytest.MonkeyPatch, act: Callable[[int], None]) -> None:
    """Call `act` with a number after each reading of the account."""
    read: Callable[[], Awaitable[Account]] = kit.venue.account
    numbers = iter(range(1, 1000))

    async def reading(*_: Any) -> Account:
        account = await read()
        act(next(numbers))
        return account

    monkeypatch.setattr(kit.venue, "account", reading)


async def test_a_resting_order_that_fills_during_the_comparison_is_no_difference(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_kit(database, SystemClock()) as kit, engine(kit) as execution:
        name = await kit.order()

        def fill(number: int) -> None:
            if number == 1:  # after the reconciliation, before the comparison
                kit.venue.trade(name, D(1), PRICE)

        after_reads(kit, monkeypatch, fill)
        assert await execution.final_check(START) == (True, ())


async def test_a_difference_that_stays_fails(database: Database) -> None:
    async with open_kit(database, SystemClock()) as kit, engine(kit) as execution:
        kit.venue.external[SYMBOL] = D(6)
        agrees, differences = await execution.final_check(START)
        assert not agrees
        assert differences == ("KRW-BTC: 0 in the ledger, 6 at the venue",)


async def test_an_order_without_an_outcome_is_looked_up_at_the_end(database: Database) -> None:
    async with open_kit(database, SystemClock()) as kit, engine(kit) as execution:
        submitted = await kit.submit()
        assert submitted.attempt_id is not None
        sent = await mark_sent(
            kit.database, kit.venue.key, submitted.attempt_id, kit.clock.now(), 1
        )
        assert sent is not None
        await kit.venue.place(sent.request)  # and its sender has recorded nothing
        assert await execution.final_check(START) == (True, ())
        assert (await kit.attempt(submitted.attempt_id))["status"] == "ACKED"


async def test_a_request_that_fails_once_is_repeated(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_kit(database, SystemClock()) as kit, engine(kit) as execution:
        read: Callable[[], Awaitable[Account]] = kit.venue.account
        failures = [UnreachableError("the reply was lost")]

        async def reading(*_: Any) -> Account:
            if failures:
                raise failures.pop()
            return await read()

        monkeypatch.setattr(kit.venue, "account", reading)
        assert await execution.final_check(START) == (True, ())


async def test_a_venue_that_does_not_answer_fails(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qts.orders.engine.SETTLE_TIMEOUT_S", 0.0)
    async with open_kit(database, SystemClock()) as kit, engine(kit) as execution:
        kit.venue.is_away = True
        with pytest.raises(UnreachableError):
            await kit.reconciler.reconcile_now()
        assert await execution.final_check(START) == (
            False,
            ("reconciliation failed: the venue does not answer",),
        )


async def test_the_start_looks_twice(database: Database) -> None:
    async with open_kit(database, SystemClock()) as kit, engine(kit) as execution:
        kit.venue.external[SYMBOL] = D(6)
        assert await execution.reconcile_at_start()
        assert await raised(kit) == ["FS070"]


async def test_the_start_finds_what_an_ended_run_has_sent(database: Database) -> None:
    """At once, not when the attempt is too old: until then the symbol could be traded again."""
    async with open_kit(database, SystemClock(), named=False) as kit:
        submitted = await kit.submit(quantity=D(2))
        assert submitted.attempt_id is not None
        await database.execute(
            "UPDATE order_attempt SET status = 'SENT', sent_at = clock_timestamp() WHERE id = $1",
            submitted.attempt_id,
        )
        async with database.transaction() as tx:
            attempt = await lock_attempt(tx, submitted.attempt_id)
        assert attempt is not None
        kit.venue.trade(await kit.venue.place(attempt.request), D(2), PRICE)
        async with engine(kit) as execution:
            assert await execution.reconcile_at_start()
        assert await kit.attempts(submitted.intent_id) == ["ACKED"]
        assert (await kit.position())[0] == 2
        assert "FS070" not in await raised(kit)


async def test_the_start_ends_the_claims_of_an_ended_run(database: Database) -> None:
    """Else the entries of the symbol wait until the claim of its worker expires, half a minute."""
    async with open_kit(database, SystemClock()) as kit:
        of_symbol = await kit.submit(quantity=D(2))
        claims = Claims(TRADE_COMMAND, STREAMS[TRADE_COMMAND], accounts=("", str(VENUE)))
        other = AccountKey(VENUE.broker, "another")
        async with database.connection() as connection:
            assert len(await claims.claim(connection, 10, time.monotonic_ns())) == 1
            # A command of another account, whose run may well live.
            event = OutboxEvent.of(TRADE_COMMAND, Reconcile(), ("Account", "a"), account=other)
            async with database.transaction() as tx:
                await kit.bus.publish(tx, event)
            of_other = Claims(TRADE_COMMAND, STREAMS[TRADE_COMMAND], accounts=(str(other),))
            (held,) = await of_other.claim(connection, 10, time.monotonic_ns())
            next_one = await kit.submit(quantity=D(2))
            await kit.work_stale(TRADE_COMMAND)
            assert await kit.work() == []
            async with engine(kit) as execution:
                assert await execution.reconcile_at_start()
            await kit.work_stale(TRADE_COMMAND)
            await kit.work()
            for each in (of_symbol, next_one):
                assert await kit.attempts(each.intent_id) == ["ACKED"]
            assert await of_other.extend(connection, [held]) == {held.id}  # it has not expired


async def test_an_order_of_the_next_attempt_is_not_taken_for_one_that_was_given_up(
    database: Database, clock: ManualClock
) -> None:
    """The strategy buys the same again after an absent order, and that reply is lost."""
    async with open_kit(database, clock, named=False) as kit:
        kit.venue.before = lost_reply
        await kit.submit()
        await kit.work()
        await clock.advance(kit.context.config.absent_after_s + 1)
        assert (await kit.reconciler.reconcile_now()).resolved.absent == 1
        kit.venue.before, kit.venue.after = (lambda _request: None), lost_reply
        again = await kit.submit()
        await kit.work()
        assert (await kit.reconciler.reconcile_now()).resolved.accepted == 1
        assert await kit.attempts(again.intent_id) == ["ACKED"]
        assert await raised(kit) == []
