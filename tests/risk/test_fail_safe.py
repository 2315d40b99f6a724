"""The fail-safe and the switches, on a real database: nothing talks its way out of LOCKDOWN."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.brokers import open_account
from qts.database import Database, DatabaseConfig
from qts.domain import OperationError, RefusedError, Secret, SystemClock
from qts.risk import Effect, FailSafe, KillSwitch, SafetyMonitor, SafetyState
from qts.risk.fail_safe import next_state
from tests.accounts import PAPER

S = SafetyState


async def until_async(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.01)
    return True


@pytest.fixture
async def database(database_url: Secret) -> AsyncIterator[Database]:
    async with Database.open(database_url, DatabaseConfig(pool_min=1, pool_max=4)) as database:
        await open_account(database, PAPER, is_live=False)
        yield database


@pytest.fixture
async def watch(database: Database) -> AsyncIterator[SafetyMonitor]:
    watch = SafetyMonitor(database, PAPER, SystemClock())
    running = asyncio.create_task(watch.run())
    yield watch
    running.cancel()
    await asyncio.wait([running])


@given(st.sampled_from(SafetyState), st.lists(st.sampled_from(Effect)))
def test_no_code_leads_back(state: SafetyState, effects: list[Effect]) -> None:
    order = list(SafetyState)
    for effect in effects:
        then = next_state(state, effect)
        assert order.index(then) >= order.index(state)
        state = then


def test_notice_is_no_failure() -> None:
    for state in SafetyState:
        assert next_state(state, Effect.NOTICE) is state


async def test_second_failure_in_a_row_locks_down(database: Database) -> None:
    safe = FailSafe(database, PAPER)
    assert (await safe.trip("FS040", "three rejects")).state is S.FAIL
    assert (await safe.trip("FS102", "stopped out")).state is S.FAIL
    assert (await safe.trip("FS041")).state is S.LOCKDOWN
    states = [(entry.state_before, entry.state_after) for entry in await safe.log()]
    assert states == [("FAIL", "LOCKDOWN"), ("FAIL", "FAIL"), ("NORMAL", "FAIL")]


async def test_two_stop_outs_are_no_lockdown(database: Database) -> None:
    safe = FailSafe(database, PAPER)
    for _ in range(2):
        assert (await safe.trip("FS102")).state is S.NORMAL


async def test_lockdown_outlives_everything_but_a_person(database: Database) -> None:
    safe = FailSafe(database, PAPER)
    await safe.trip("FS104", "VIX 41")
    for code in ("FS040", "AN001", "FS102"):
        assert (await safe.trip(code)).state is S.LOCKDOWN
    assert (await safe.clear_transient_fail(await safe.now(), "all is well")).state is S.LOCKDOWN
    assert (await safe.clear_warning()).state is S.LOCKDOWN
    for words in ("SET state = 'FAIL'", "SET state = 'NORMAL'"):
        with pytest.raises((asyncpg.PostgresError, OperationError), match="LOCKDOWN ends only"):
            await database.execute(f"UPDATE safety_state {words}")
    with pytest.raises((asyncpg.PostgresError, OperationError)):
        await database.execute("DELETE FROM safety_state")
    with pytest.raises((asyncpg.PostgresError, OperationError), match="written once"):
        await database.execute("DELETE FROM safety_log")
    with pytest.raises(RefusedError):
        await safe.release("", "")
    assert (await safe.release("owner", "looked at it")).state is S.NORMAL
    assert (await safe.log(1))[0].actor == "owner"
    await safe.trip("FS104", "again")
    with pytest.raises((asyncpg.PostgresError, OperationError), match="LOCKDOWN ends only"):
        await database.execute("UPDATE safety_state SET state = 'NORMAL'")


async def test_recheck_ends_only_what_can_pass(database: Database) -> None:
    safe = FailSafe(database, PAPER)
    await safe.trip("FS040")
    seen = await safe.now()
    assert (await safe.clear_transient_fail(seen, "all agrees")).state is S.NORMAL
    await safe.trip("FS070")
    assert (await safe.clear_transient_fail(seen, "an older look")).state is S.FAIL
    assert (await safe.clear_transient_fail(await safe.now(), "all agrees")).state is S.NORMAL
    await safe.trip("FS043")
    assert (await safe.clear_transient_fail(await safe.now(), "all agrees")).state is S.FAIL


async def test_warning_ends_when_it_is_calm(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    safe = FailSafe(database, PAPER)
    assert (await safe.trip("AN001")).state is S.WARNING
    assert (await safe.clear_warning()).state is S.WARNING
    monkeypatch.setattr("qts.risk.fail_safe.WARNING_TTL_S", 0.0)
    assert (await safe.clear_warning()).state is S.NORMAL


async def test_code_that_is_none_is_refused(database: Database) -> None:
    with pytest.raises(RefusedError, match="code FS999 is unknown"):
        await FailSafe(database, PAPER).trip("FS999")


async def test_what_was_never_set_may_not_trade(database: Database, watch: SafetyMonitor) -> None:
    assert await until_async(lambda: watch.is_current)
    assert not watch.enabled()
    assert not watch.enabled("scalp")
    await KillSwitch(database, PAPER).enable_unset(("scalp",), "first start")
    assert await until_async(lambda: watch.enabled() and watch.enabled("scalp"))
    assert not watch.enabled("another")


async def test_first_start_does_not_undo_a_switch(database: Database) -> None:
    switch = KillSwitch(database, PAPER)
    await switch.set(False, "owner", "enough")
    await switch.enable_unset(("scalp",), "start")
    found = await switch.all()
    assert not found["account"].enabled
    assert found["account"].reason == "enough"
    assert found["scalp"].enabled


async def test_switch_and_fail_safe_are_seen_by_notice_alone(
    database: Database, watch: SafetyMonitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("_REFRESH_INTERVAL_S", "MAX_AGE_S"):
        monkeypatch.setattr(f"qts.risk.kill_switch.{pause}", 3600.0)
    switch = KillSwitch(database, PAPER)
    await switch.set(True, "owner")
    assert await until_async(watch.enabled)
    await switch.set(False, "owner")
    assert await until_async(lambda: not watch.enabled())
    await FailSafe(database, PAPER).trip("FS104")
    assert await until_async(lambda: watch.safety.state is S.LOCKDOWN)


async def test_a_switch_is_off_when_the_operator_set_it_so(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unlike `enabled`, for nothing else: neither unset nor unread."""
    watch, switch = SafetyMonitor(database, PAPER, SystemClock()), KillSwitch(database, PAPER)
    assert not watch.is_off()
    await switch.set(True, "owner")
    await switch.set(False, "owner", strategy="one")
    await watch.refresh()
    assert (watch.is_off(), watch.is_off("one"), watch.is_off("two")) == (False, True, False)
    await switch.set(False, "owner")
    await watch.refresh()
    assert (watch.is_off(), watch.is_off("two")) == (True, True)
    await switch.set(True, "owner")
    await watch.refresh()
    monkeypatch.setattr("qts.risk.kill_switch.MAX_AGE_S", 0.0)
    assert not watch.is_off("two")


async def test_silent_database_counts_as_off(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = SafetyMonitor(database, PAPER, SystemClock())
    await KillSwitch(database, PAPER).set(True, "owner")
    await watch.refresh()
    assert watch.enabled()
    monkeypatch.setattr("qts.risk.kill_switch.MAX_AGE_S", 0.0)
    assert not watch.enabled()
    assert watch.safety.state is S.LOCKDOWN
