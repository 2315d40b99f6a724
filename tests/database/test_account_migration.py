"""Migration 0016 on rows of older versions: nothing is lost, and live inherits nothing."""

from __future__ import annotations

import shutil
import time
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path

import asyncpg
import pytest

from qts.brokers import open_account
from qts.database import Database, DatabaseConfig, migrate
from qts.database.sql import FOLDER
from qts.domain import AccountKey, Secret
from qts.orders import list_positions
from qts.risk import FailSafe, KillSwitch, SafetyState

PAPER = AccountKey.of("paper", "paper")
LIVE = AccountKey.of("upbit", "real", "main")

# As version 15 wrote them: an order at `upbit` that filled, one at `paper`, and a lockdown.
OLD_ROWS = """
INSERT INTO signal VALUES
    ('00000000-0000-0000-0000-00000000000{n}', 'dip', 'KRW-BTC', 'BUY', 'r', now());
INSERT INTO order_intent (id, signal_id, intent_type, broker, strategy_key, symbol, side,
        order_type, quantity, price, approved_at, expires_at)
    SELECT id, id, 'ENTRY', '{broker}', 'dip', symbol, side, 'LIMIT', 2, 100, now(),
           now() + '1 h'::interval
      FROM signal WHERE id = '00000000-0000-0000-0000-00000000000{n}';
INSERT INTO order_attempt (id, order_intent_id, attempt_no, broker, symbol, identifier,
        request_json)
    SELECT id, id, 1, broker, symbol, id::text, json_build_object('identifier', id::text)
      FROM order_intent WHERE broker = '{broker}';
UPDATE order_attempt SET status = 'SENT', sent_at = now() WHERE broker = '{broker}';
UPDATE order_attempt SET status = 'ACKED', broker_order_id = 'V1' WHERE broker = '{broker}';
INSERT INTO broker_order (broker, broker_order_id, order_attempt_id, origin, symbol, side,
        quantity, placed_at)
    SELECT broker, 'V1', id, 'OURS', symbol, 'BUY', 2, now()
      FROM order_attempt WHERE broker = '{broker}';
INSERT INTO position (broker, symbol) VALUES ('{broker}', 'KRW-BTC');
INSERT INTO fill (broker, trade_id, broker_order_id, symbol, side, quantity, price, fee, traded_at)
    VALUES ('{broker}', 'T1', 'V1', 'KRW-BTC', 'BUY', 2, 100, 0, now());
UPDATE fill SET counted = true WHERE broker = '{broker}';
INSERT INTO market_state VALUES ('{broker}', 'KRW-XRP', 'SUSPENDED', 'BY_HAND', '', now());
INSERT INTO account_snapshot (broker, taken_at, cash, holdings)
    VALUES ('{broker}', now(), 1, '[]');
INSERT INTO reconcile_mark VALUES ('{broker}', now());
"""
OLD_SAFETY = """
INSERT INTO kill_switch (scope, strategy_key, trading_enabled, changed_by)
    VALUES ('account', '', true, 'first start on paper'), ('strategy', 'dip', true, 'x');
UPDATE safety_state SET state = 'LOCKDOWN', code = 'FS110', message = 'blocked';
INSERT INTO safety_log (code, message, state_before, state_after, actor)
    VALUES ('FS110', 'blocked', 'NORMAL', 'LOCKDOWN', 'qts');
INSERT INTO outbox_event (event_id, stream, event_type, aggregate_type, aggregate_id, payload_json)
    VALUES (gen_random_uuid(), 's', 't', 'Market', 'KRW-BTC', '{}');
"""
ARCHIVE = """
INSERT INTO outbox_archive (id, event_id, stream, event_type, aggregate_type, aggregate_id,
        payload_json, attempt_count, max_attempts, next_retry_at, locked_by, created_at,
        processed_at)
    SELECT n, gen_random_uuid(), 's', 't', 'a', '1', '{"pad": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}',
           1, 10, now(), 'w', now(), now() FROM generate_series(1, $1::int) AS n
"""


@pytest.fixture
async def old(empty_database_url: Secret, tmp_path: Path) -> AsyncIterator[Database]:
    """Yield a database of version 15 with rows of two brokers."""
    for path in sorted(FOLDER.glob("*.sql"))[:15]:
        shutil.copy(path, tmp_path)
    config = DatabaseConfig(pool_min=1, pool_max=3)
    async with Database.open(empty_database_url, config) as database:
        await migrate(database, tmp_path)
        for number, broker in enumerate(("upbit", "paper"), start=1):
            await database.execute(OLD_ROWS.format(broker=broker, n=number))
        await database.execute(OLD_SAFETY)
        yield database


async def accounts_of(database: Database, table: str, broker: str) -> set[str]:
    query = f"SELECT DISTINCT account FROM {table} WHERE broker = $1"  # noqa: S608 - ours
    return {row["account"] for row in await database.fetch(query, broker)}


TABLES = (
    "order_intent",
    "order_attempt",
    "broker_order",
    "fill",
    "position",
    "market_state",
    "account_snapshot",
    "reconcile_mark",
)


async def test_old_rows_move_to_the_first_account_at_their_broker(old: Database) -> None:
    await migrate(old)
    for table in TABLES:
        assert await accounts_of(old, table, "upbit") == {""}, table
    await open_account(old, LIVE, is_live=True)
    await open_account(old, AccountKey.of("upbit", "real", "second"), is_live=True)
    for table in TABLES:
        assert await accounts_of(old, table, "upbit") == {LIVE.account}, table
        assert await accounts_of(old, table, "paper") == {""}, table
    (position,) = await list_positions(old, LIVE)
    assert (position.symbol, position.quantity) == ("KRW-BTC", Decimal(2))


async def test_a_live_account_inherits_neither_switch_nor_lockdown(old: Database) -> None:
    await migrate(old)
    await open_account(old, LIVE, is_live=True)
    assert await KillSwitch(old, LIVE).all() == {}  # off, until the operator switches it on
    assert (await FailSafe(old, LIVE).now()).state is SafetyState.NORMAL
    await open_account(old, PAPER, is_live=False)
    assert set(await KillSwitch(old, PAPER).all()) == {"account", "dip"}
    assert (await FailSafe(old, PAPER).now()).state is SafetyState.LOCKDOWN
    assert [entry.code for entry in await FailSafe(old, PAPER).log()] == ["FS110"]
    assert await FailSafe(old, LIVE).log() == []


async def test_rows_keep_their_account_and_new_ones_must_name_it(old: Database) -> None:
    await migrate(old)
    await open_account(old, PAPER, is_live=False)
    for table in ("order_intent", "order_attempt", "fill", "broker_order"):
        with pytest.raises(asyncpg.IntegrityConstraintViolationError):
            await old.execute(f"UPDATE {table} SET account = 'b' WHERE broker = 'paper'")  # noqa: S608
    with pytest.raises(asyncpg.NotNullViolationError):
        await old.execute("INSERT INTO reconcile_mark (broker, reconciled_at) VALUES ('x', now())")


async def test_old_events_belong_to_no_account_and_the_archive_is_not_rewritten(
    old: Database,
) -> None:
    await old.execute(ARCHIVE, 50_000)
    before = await old.fetchval("SELECT pg_relation_filenode('outbox_archive_rest')")
    files = "SELECT string_agg(pg_relation_filenode(c.oid)::text, ' ' ORDER BY c.relname)"
    files += " FROM pg_class c JOIN pg_inherits i ON i.inhrelid = c.oid"
    files += " WHERE i.inhparent = 'outbox_archive'::regclass"
    parts = await old.fetchval(files)
    began = time.monotonic()
    await migrate(old)
    print(f"migrated 50,000 archived events in {time.monotonic() - began:.2f} s")
    assert await old.fetchval("SELECT pg_relation_filenode('outbox_archive_rest')") == before
    assert await old.fetchval(files) == parts
    query = "SELECT count(*) FROM outbox_event_all WHERE account = ''"
    assert await old.fetchval(query) == 50_001
