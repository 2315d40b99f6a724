"""Stored alerts: open until acknowledged, counted while open, never lost to a database outage."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.database import Database
from qts.domain import ManualClock, OperationError, RefusedError
from qts.notify import AlertStore, AlertWriter, RecentAlert, RecentAlerts
from tests.accounts import PAPER, UPBIT


@pytest.fixture
def store(database: Database) -> AlertStore:
    return AlertStore(database, [PAPER])


async def test_an_alert_stays_open_until_it_is_acknowledged(store: AlertStore) -> None:
    for at in (1.0, 5.0):
        await store.add(RecentAlert(at, "critical", "P0 is full", "FS095"))
    await store.add(RecentAlert(3.0, "warning", "P1 is full"))
    first, second = await store.rows(10, acknowledged=False)
    assert (first.message, first.times, first.last_at.timestamp()) == ("P0 is full", 2, 5.0)
    assert (second.message, second.times) == ("P1 is full", 1)
    assert await store.mark_acknowledged([first.id], "dashboard trade 3f9ab1", "known") == 1
    assert await store.rows(10, acknowledged=False) == [second]
    *_, done = await store.rows(10, acknowledged=True)
    assert (done.acknowledged_by, done.note) == ("dashboard trade 3f9ab1", "known")
    assert done.acknowledged_at is not None
    with pytest.raises(RefusedError, match="is not open; see qts ops alerts list"):
        await store.mark_acknowledged([first.id], "somebody else", "")
    await store.add(RecentAlert(9.0, "critical", "P0 is full", "FS095"))  # it came again
    newest, _ = await store.rows(10, acknowledged=False)
    assert (newest.message, newest.times) == ("P0 is full", 1)
    assert await store.mark_acknowledged(None, "cli root", "") == 2
    assert await store.mark_acknowledged(None, "cli root", "") == 0


async def test_another_accounts_alerts_are_not_touched(
    database: Database, store: AlertStore
) -> None:
    other = AlertStore(database, [UPBIT])
    await other.add(RecentAlert(1.0, "warning", "theirs"))
    assert await store.rows(10, acknowledged=True) == []
    (theirs,) = await other.rows(10, acknowledged=False)
    with pytest.raises(RefusedError):
        await store.mark_acknowledged([theirs.id], "somebody", "")
    await store.mark_acknowledged(None, "somebody", "")
    assert await other.rows(10, acknowledged=False) == [theirs]


class FlakyStore:
    """Fails where the list says so; what it took is counted."""

    def __init__(self, fails: list[bool]) -> None:
        self._fails = fails
        self.taken: Counter[str] = Counter()

    async def add(self, alert: RecentAlert) -> None:
        if self._fails and self._fails.pop():
            raise OperationError("the database is away")
        self.taken[alert.text] += 1


@given(st.lists(st.sampled_from(["info", "warning", "critical"]), max_size=30), st.data())
def test_each_warning_is_stored_once_whatever_fails(severities: list[Any], data: Any) -> None:
    asyncio.run(each_is_stored_once(severities, data))


async def each_is_stored_once(severities: list[Any], data: Any) -> None:
    store = FlakyStore(data.draw(st.lists(st.booleans(), max_size=20)))
    alerts, clock = RecentAlerts(), ManualClock()
    writer = AlertWriter(store, alerts, clock)  # type: ignore[arg-type]
    for number, severity in enumerate(severities):
        alerts.add(float(number), severity, str(number))
        if data.draw(st.booleans()):
            await writer.write()
    for _ in range(len(severities) + 21):
        await writer.write()
    loud = [str(number) for number, severity in enumerate(severities) if severity != "info"]
    assert store.taken == Counter(loud)
