"""What stops an order at the last moment: the rules, and when they are looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import product

import pytest

from qts.database import Connection, Database
from qts.domain import IntentType
from qts.orders.ledger_values import SQL
from qts.risk import SafetyState
from tests.accounts import VENUE
from tests.orders.kit import SYMBOL, OrderKit
from tests.outbox.kit import until

STOP = "SELECT order_stop($1, $2, $3, $4)"
LEAVES = ("KILL_SWITCH", "STRATEGY_OFF", "SAFETY_FAIL", "SAFETY_LOCKDOWN", None)
SUSPENDED_AT = """
INSERT INTO market_state (broker, account, symbol, trade_status, reason_code, detail, suspended_at)
VALUES ('upbit', 'a', $1, 'SUSPENDED', $2, 'test', now())
"""


def stop_of(intent: IntentType, account: bool, strategy: bool, safety: SafetyState) -> str | None:
    if not account:
        return "KILL_SWITCH"
    if intent.is_exit:
        return None
    if not strategy:
        return "STRATEGY_OFF"
    calm = safety in (SafetyState.NORMAL, SafetyState.WARNING)
    return None if calm else f"SAFETY_{safety}"


async def test_switches_and_fail_safe_stop_what_the_rules_say(kit: OrderKit) -> None:
    seen = set()
    async with kit.database.transaction() as tx:
        await tx.execute("ALTER TABLE safety_state DISABLE TRIGGER USER")
        for account, strategy, safety in product((True, False), (True, False), SafetyState):
            await tx.execute(
                "UPDATE kill_switch SET trading_enabled = $1 WHERE scope = 'account'", account
            )
            await tx.execute(
                "UPDATE kill_switch SET trading_enabled = $1 WHERE scope = 'strategy'", strategy
            )
            await tx.execute("UPDATE safety_state SET state = $1", safety)
            for intent in IntentType:
                found = await tx.fetchval(STOP, *VENUE, "scalper", intent)
                assert found == stop_of(intent, account, strategy, safety)
                seen.add(found)
    assert seen == set(LEAVES)


async def test_who_was_never_switched_on_is_off(kit: OrderKit) -> None:
    ask, of = STOP, (*VENUE, "stranger")
    assert await kit.database.fetchval(ask, *of, IntentType.ENTRY) == "STRATEGY_OFF"
    await kit.database.execute("DELETE FROM kill_switch")
    assert await kit.database.fetchval(ask, *of, IntentType.EXIT_STOPLOSS) == "KILL_SWITCH"


@pytest.mark.parametrize(
    ("symbol", "code", "passes"),
    [
        (SYMBOL, "UNKNOWN", lambda intent: intent.is_exit),
        (SYMBOL, "BY_HAND", lambda intent: intent.is_exit),
        (SYMBOL, "FROZEN", lambda intent: intent.is_protective),
        ("*", "BLOCKED", lambda _: False),
        ("KRW-XRP", "UNKNOWN", lambda _: True),
    ],
)
async def test_a_suspended_market_lets_out_what_the_rules_say(
    database: Database, symbol: str, code: str, passes: Callable[[IntentType], bool]
) -> None:
    await database.execute(SUSPENDED_AT, symbol, code)
    for intent in IntentType:
        found = await database.fetchval("SELECT market_stop('upbit', 'a', $1, $2)", SYMBOL, intent)
        assert found == (None if passes(intent) else f"MARKET_{code}")


async def test_the_whole_venue_comes_before_the_market(database: Database) -> None:
    for symbol, code in ((SYMBOL, "FROZEN"), ("*", "BLOCKED")):
        await database.execute(SUSPENDED_AT, symbol, code)
    found = await database.fetchval("SELECT market_stop('upbit', 'a', $1, 'EXIT_MAE')", SYMBOL)
    assert found == "MARKET_BLOCKED"


async def test_a_switch_thrown_while_the_attempt_is_held_stops_it(kit: OrderKit) -> None:
    submitted = await kit.submit()
    async with kit.database.transaction() as tx:
        await tx.fetchrow(SQL.attempt, submitted.attempt_id)
        work = asyncio.create_task(kit.work())
        await until(lambda: _somebody_waits(tx))
        await kit.kill.set(False, actor="test", reason="now")
    await work
    assert kit.venue.placed == []
    assert (await kit.attempt(submitted.attempt_id))["error_code"] == "KILL_SWITCH"


async def _somebody_waits(tx: Connection) -> bool:
    return bool(await tx.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))
