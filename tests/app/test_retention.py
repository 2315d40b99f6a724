"""Retention: a year of rows, logs and journals stays bounded."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from qts.app.retention import BATCH, Retention, days_by_table, prune_journals
from qts.config import Config
from qts.config.schema import RetentionConfig
from qts.database import Database, DatabaseConfig
from qts.domain import Secret, SystemClock
from qts.embedded import Home
from qts.pipeline.decision_journal import (
    DecisionJournal,
    JournalHeader,
    OwnerEntry,
    read_journal,
)
from qts.risk import RiskConfig

DAY_S = 86_400.0


@pytest.fixture
async def database(database_url: Secret) -> AsyncIterator[Database]:
    async with Database.open(database_url, DatabaseConfig(pool_min=1, pool_max=4)) as database:
        yield database


def retention(database: Database, folder: Path, **settings: Any) -> Retention:
    home = Home.at(folder / "home")
    home.create_directories()
    return Retention(database, msgspec.convert(settings, Config), home, SystemClock())


async def test_a_year_of_account_snapshots_is_thinned(database: Database, tmp_path: Path) -> None:
    """All of a day, then one per five minutes for a month, then one per day, of each account."""
    insert = (
        "INSERT INTO account_snapshot (broker, account, taken_at, cash, holdings)"
        " SELECT 'kis', $1, at, 1, '[]' FROM generate_series(clock_timestamp() - $2::interval,"
        " clock_timestamp() - $3::interval, $4::interval) at"
    )
    days, steps = timedelta(days=1), (timedelta(minutes=4), timedelta(hours=1))
    for account in ("first", "second"):
        await database.execute(insert, account, 32 * days, 0 * days, steps[0])
        # One a day is left of the older ones, of few as of many.
        await database.execute(insert, account, 400 * days, 32 * days + steps[0], steps[1])
    before = await database.fetchval("SELECT count(*) FROM account_snapshot")
    task = retention(database, tmp_path, retention={"snapshots_daily_days": 365})
    counts = await task.apply()
    rows = await database.fetch(
        "SELECT taken_at FROM account_snapshot WHERE account = 'first' ORDER BY taken_at"
    )
    now, at = datetime.now(UTC), [row[0] for row in rows]
    ages = [(now - each) / timedelta(days=1) for each in at]
    assert sum(age < 0.99 for age in ages) in range(355, 362)
    month = [each for each, age in zip(at, ages, strict=True) if 1.01 < age < 30.99]
    assert 30 * 285 < len(month) <= 30 * 289
    assert len({(each.date(), each.hour, each.minute // 5) for each in month}) == len(month)
    year = [each for each, age in zip(at, ages, strict=True) if age > 31.01]
    assert len(year) in range(332, 337)
    assert max(ages) < 365
    left = await database.fetchval("SELECT count(*) FROM account_snapshot")
    assert left == 2 * len(rows)  # accounts are thinned apart
    assert counts["account_snapshot"] == before - left > BATCH  # more than one statement
    assert (await task.apply())["account_snapshot"] == 0


async def test_old_rows_end_and_what_is_open_stays(database: Database, tmp_path: Path) -> None:
    await database.execute(
        "INSERT INTO notification_log (channel, event_id, severity, message, state, created_at)"
        " SELECT 'log', gen_random_uuid(), 'info', '{}', state, at FROM unnest($1::text[]) state,"
        " generate_series(clock_timestamp() - interval '365 days', clock_timestamp(), '1 day') at",
        ["PENDING", "SENT", "GIVEN_UP"],
    )
    await database.execute(
        "INSERT INTO backtest_job (job_id, request, status, error, created_at, finished_at)"
        " SELECT gen_random_uuid(), '{}', status, '', at, CASE status WHEN 'FAILED' THEN at END"
        " FROM unnest($1::text[]) status,"
        " generate_series(clock_timestamp() - interval '365 days', clock_timestamp(), '1 day') at",
        ["QUEUED", "FAILED"],
    )
    await database.execute(
        "INSERT INTO event_dead_letter (event_id, event_type, priority, handler, error, event,"
        " died_at, replayed_at) SELECT gen_random_uuid()::text, 'LOG_WRITE', 3, 'h', '', '{}', at,"
        " CASE WHEN replayed THEN at END FROM unnest($1::bool[]) replayed,"
        " generate_series(clock_timestamp() - interval '365 days', clock_timestamp(), '1 day') at",
        [True, False],
    )
    await database.execute(
        "INSERT INTO manual_command (id, broker, account, request, actor, reason, requested_at,"
        " expires_at) SELECT gen_random_uuid(), 'paper', 'a', '{}', 'test', '', at, at FROM"
        " generate_series(clock_timestamp() - interval '800 days', clock_timestamp(), '1 day') at"
    )
    task = retention(database, tmp_path)
    counts = await task.apply()
    days = days_by_table(Config())
    assert counts["manual_command"] == 801 - days["manual_command"]
    # 366 days of each; only the ended ones of the kept days remain, and all that are open.
    assert counts["notification_log"] == 2 * (366 - days["notification_log"])
    assert counts["backtest_job"] == 366 - days["backtest_job"]
    assert counts["event_dead_letter"] == 366 - days["event_dead_letter"]
    for table, is_open in {
        "notification_log": "state = 'PENDING'",
        "backtest_job": "status = 'QUEUED'",
        "event_dead_letter": "replayed_at IS NULL",
    }.items():
        query = f"SELECT count(*) FROM {table} WHERE {is_open}"  # noqa: S608 - constants above
        assert await database.fetchval(query) == 366
    assert not any((await task.apply()).values())


async def test_logs_that_are_written_once_end_by_retention_alone(
    database: Database, tmp_path: Path
) -> None:
    """Each has a mark of what is missing; nothing else can delete or change a row."""
    await database.execute(
        "INSERT INTO safety_log (broker, account, at, code, message, state_before, state_after,"
        " actor) SELECT 'kis', 'a', at, 'FS001', '', 'NORMAL', 'NORMAL', 'test' FROM"
        " generate_series(clock_timestamp() - interval '3 years', clock_timestamp(), '6 hours') at"
    )
    await database.execute(
        "INSERT INTO dashboard_action (at, actor, role, address, action, outcome)"
        " SELECT at, 'a', 'read', '', 'login', 'DONE' FROM generate_series("
        " clock_timestamp() - interval '3 years', clock_timestamp(), '6 hours') at"
    )
    before = await database.fetchval("SELECT count(*) FROM safety_log")
    counts = await retention(database, tmp_path).apply()
    for log in ("safety_log", "dashboard_action"):
        left = await database.fetchval(f"SELECT count(*) FROM {log}")  # noqa: S608 - constants
        assert left in range(730 * 4, 730 * 4 + 3)
        assert counts[log] == before - left
        mark = await database.fetchrow(
            "SELECT deleted, up_to FROM retention_mark WHERE log = $1", log
        )
        assert mark is not None
        assert mark[0] == counts[log]
        assert timedelta(days=730) < datetime.now(UTC) - mark[1] < timedelta(days=731)
        for change in (
            f"DELETE FROM {log}",  # noqa: S608 - constants
            f"UPDATE {log} SET actor = 'nobody'",  # noqa: S608 - constants
            f"SELECT retain_log('{log}', interval '29 days', 9)",
        ):
            with pytest.raises(asyncpg.PostgresError, match=r"once|30 days"):
                await database.execute(change)
    with pytest.raises(asyncpg.PostgresError, match="not a log"):
        await database.execute("SELECT retain_log('fill', interval '1 year', 9)")
    assert not any((await retention(database, tmp_path).apply()).values())


async def test_a_log_in_use_is_rotated_and_goes_on(database: Database, tmp_path: Path) -> None:
    """The child process keeps writing to the file that it opened to append."""
    task = retention(database, tmp_path, retention={"log_mb": 1})
    path = tmp_path / "home" / "log" / "dashboard.log"
    with path.open("ab", buffering=0) as child:
        for turn in range(30):  # 60 MB in the end
            child.write(b"%2d" % turn * 1_000_000)
            task.rotate_logs()
            total = sum(each.stat().st_size for each in path.parent.iterdir())
            assert total <= 2_000_000
        child.write(b"the last line\n")
    assert path.read_bytes() == b"the last line\n"
    assert path.with_suffix(".log.1").read_bytes().startswith(b"29")


def test_journals_end_by_age_and_by_size(tmp_path: Path) -> None:
    now_s = 1_000 * DAY_S
    for age in range(60):
        path = tmp_path / f"{age:02}.journal"
        path.write_bytes(bytes(100_000))
        os.utime(path, (now_s - age * DAY_S, now_s - age * DAY_S))
    (tmp_path / "notes.txt").write_text("not a journal")
    kept = RetentionConfig(journal_days=30, journal_mb=2)
    assert prune_journals(tmp_path, kept, now_s) == 40  # 20 of 100 kB are 2 MB
    assert prune_journals(tmp_path, RetentionConfig(journal_days=7), now_s) == 12
    assert prune_journals(tmp_path, RetentionConfig(journal_days=1), now_s + 99 * DAY_S) == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00.journal", "notes.txt"]


def test_a_journal_ends_at_its_size_and_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    header = JournalHeader(datetime(2026, 3, 2, tzinfo=UTC), (), RiskConfig().limits.exact)
    with DecisionJournal(path, header, max_bytes=10_000) as journal:
        for number in range(5_000):
            journal.append(OwnerEntry("005930", f"strategy {number}"))
    assert 9_900 < path.stat().st_size <= 10_000
    entries = list(read_journal(path))
    assert entries[0] == header
    assert [each.strategy_key for each in entries[1:] if isinstance(each, OwnerEntry)] == [
        f"strategy {number}" for number in range(len(entries) - 1)
    ]


def test_messages_are_kept_as_long_as_their_events_can_be_delivered() -> None:
    settings = {"retention": {"notifications_days": 7}, "outbox": {"keep_days": 60}}
    assert days_by_table(msgspec.convert(settings, Config))["notification_log"] == 60


async def test_an_error_in_one_table_does_not_stop_the_others(
    database: Database, tmp_path: Path
) -> None:
    await database.execute("ALTER TABLE backtest_job RENAME TO elsewhere")
    await database.execute(
        "INSERT INTO event_dead_letter (event_id, event_type, priority, handler, error, event,"
        " died_at, replayed_at) VALUES ('e', 'LOG_WRITE', 3, 'h', '', '{}',"
        " now() - interval '1 year', now() - interval '1 year')"
    )
    counts = await retention(database, tmp_path).apply()
    assert "backtest_job" not in counts
    assert counts["event_dead_letter"] == 1


async def test_old_samples_and_reports_end(database: Database, tmp_path: Path) -> None:
    await database.execute(
        "INSERT INTO run_sample (broker, account, started_at, taken_at, equity, cash, unrealised,"
        " counts) SELECT 'paper', 'a', at, at, extract(epoch FROM at), 1, 0, '{}' FROM"
        " generate_series(date_trunc('day', clock_timestamp(), 'Asia/Seoul') - interval '100 days',"
        " clock_timestamp(), '12 hours') at"
    )
    kept = await database.fetchval(
        "SELECT count(*) FROM run_sample WHERE taken_at >= clock_timestamp() - interval '8 days'"
    )
    task = retention(
        database,
        tmp_path,
        retention={"samples_days": 8, "reports_days": 8, "snapshots_daily_days": 50},
    )
    reports = tmp_path / "home" / "reports"
    reports.mkdir()
    days = [datetime.now(UTC).date() - timedelta(days=n) for n in range(20)]
    for day in days:
        for suffix in ("html", "json"):
            (reports / f"{day}.{suffix}").write_text("{}")
    (reports / "2020-01-01.txt").write_text("not a report")
    counts = await task.apply()
    assert counts["run_sample"] > 0
    left = await database.fetch(
        "SELECT taken_at AT TIME ZONE 'Asia/Seoul' AS at FROM run_sample ORDER BY taken_at"
    )
    days_of_old = [row["at"].date() for row in left[:-kept]]
    assert len(set(days_of_old)) == len(days_of_old) in range(41, 44)  # one of each day
    assert {row["at"].hour for row in left[: -kept - 1]} == {12}  # the last one
    assert (await task.apply())["run_sample"] == 0
    assert counts["reports"] == 2 * 11
    assert sorted(path.stem for path in reports.glob("*.json")) == sorted(map(str, days[:9]))
    assert (reports / "2020-01-01.txt").exists()
