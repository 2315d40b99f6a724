"""Alert rules checked against metrics over time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts import telemetry
from qts.database import Database
from qts.domain import ManualClock, UnreachableError
from qts.notify import RULES, AlertRule, Message, NotificationService, NotifyConfig, RecentAlerts
from qts.notify.alerts import REPEAT_INTERVAL_S, AlertWatcher, RuleState, Samples
from qts.notify.message_store import MessageStore
from tests.notify.receiver import until

GROWTH = AlertRule(
    name="Test",
    metric="a_total",
    labels={"status": "BAD"},
    window_s=300,
    threshold=3,
    severity="critical",
    text="t",
    action="a",
)
LEVEL = AlertRule(
    name="Level", metric="b", op=">", threshold=60, for_s=30, severity="warning", text="t",
    action="a",
)  # fmt: skip


def counted(bad: float, good: float = 1000.0) -> dict[str, list[tuple[dict[str, str], float]]]:
    return {"a_total": [({"status": "BAD"}, bad), ({"status": "GOOD"}, good)]}


def at(seconds: float) -> int:
    return round(seconds * 1e9)


def test_growth_counts_within_its_window_only() -> None:
    state = RuleState(GROWTH)
    assert state.check(counted(10), at(0)) is None
    assert state.check(counted(12), at(200)) is None
    assert state.check(counted(13), at(400)) is None  # 3 in total, but 2 are outside the window
    assert state.check(counted(16), at(500)) == 4


def test_a_figure_has_to_last() -> None:
    state = RuleState(LEVEL)
    high = {"b": [({"x": "1"}, 10.0), ({"x": "2"}, 61.0)]}
    assert state.check(high, at(0)) is None
    assert state.check({"b": [({}, 60.0)]}, at(20)) is None  # not above: the time starts again
    assert state.check(high, at(25)) is None
    assert state.check(high, at(54)) is None
    assert state.check(high, at(55)) == 61


def test_a_lasting_rule_is_sent_rarely() -> None:
    state = RuleState(LEVEL)
    high: Samples = {"b": [({}, 61.0)]}
    sent = [second for second in range(0, 3600, 5) if state.check(high, at(second)) is not None]
    assert sent == [
        30,
        30 + REPEAT_INTERVAL_S,
        30 + 2 * REPEAT_INTERVAL_S,
        30 + 3 * REPEAT_INTERVAL_S,
    ]


def test_a_missing_metric_sends_nothing() -> None:
    assert RuleState(LEVEL).check({}, at(0)) is None
    low = AlertRule(
        name="Low", metric="free", op="<", threshold=0.1, severity="critical", text="t", action="a"
    )
    assert RuleState(low).check({}, at(0)) is None
    assert RuleState(low).check({"free": [({}, 0.05), ({}, 0.9)]}, at(0)) == 0.05


@given(st.lists(st.tuples(st.floats(0.1, 100), st.integers(0, 3)), max_size=60))
def test_growth_is_the_difference_over_the_window(steps: list[tuple[float, int]]) -> None:
    rule = AlertRule(
        name="Any", metric="a_total", labels={"status": "BAD"}, window_s=300, threshold=1,
        severity="info", text="t", action="a",
    )  # fmt: skip
    state, now, total = RuleState(rule), 0.0, 0
    history: list[tuple[float, int]] = []
    for after, grown in steps:
        now, total = now + after, total + grown
        history.append((now, total))
        first = next(count for moment, count in history if at(now) - at(moment) <= at(300))
        assert state._value(counted(total), at(now)) == total - first


def test_rule_names_are_unique_and_every_rule_has_an_action() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.action and rule.text for rule in RULES)
    critical = {rule.name for rule in RULES if rule.severity == "critical"}
    assert {"OrderUnknown", "OrdersThrottled", "CommandBacklog", "DiskFull"} <= critical


async def test_an_order_pending_for_a_minute_is_reported(database: Database) -> None:
    gauge = telemetry.gauge(
        "everbit_outbox_oldest_pending_seconds",
        "How long the oldest due event has waited.",
        ("stream",),
    )
    clock = ManualClock()
    async with NotificationService.open(database, NotifyConfig(log=True), clock) as notifications:
        gauge.labels("everbit.trade.command").set(61)
        try:
            await notifications.watcher.check()
            await notifications.watcher.check()
        finally:
            gauge.labels("everbit.trade.command").set(0)
        titles = [message.title for message in await notifications.store.recent()]
    expected = "CommandBacklog: an order command has been pending for more than a minute"
    assert titles.count(expected) == 1


async def test_an_alert_is_listed_without_any_channel(database: Database) -> None:
    gauge = telemetry.gauge(
        "qts_recording_stopped", "1 while the disk is too full to record quotes, else 0."
    )
    clock, alerts = ManualClock(), RecentAlerts()
    opening = NotificationService.open(database, NotifyConfig(), clock, alerts=alerts)
    async with opening as notifications:
        gauge.set(1)
        try:
            await notifications.watcher.check()
        finally:
            gauge.set(0)
    texts = [alert.text for alert in alerts.all()]
    assert [text for text in texts if text.startswith("RecordingStopped: quotes are not recorded")]
    assert await database.fetchval("SELECT count(*) FROM notification_log") == 0


async def test_an_internal_error_does_not_end_the_run(database: Database) -> None:
    clock = ManualClock()
    async with NotificationService.open(database, NotifyConfig(log=True), clock) as notifications:
        failures = asyncio.Event()

        async def broken() -> None:
            failures.set()
            raise RuntimeError("a bug")

        async def waiting() -> bool:
            return bool(clock._sleepers)

        notifications.watcher.run = broken  # type: ignore[method-assign]
        task = asyncio.create_task(notifications.run())
        for _ in range(3):
            await asyncio.wait_for(failures.wait(), 5)
            failures.clear()
            await until(waiting)
            await clock.advance(5)
        assert not task.done()
        task.cancel()
        await asyncio.wait({task})


async def test_a_message_that_could_not_be_stored_is_sent_at_the_next_check(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is unreachable while the metric is high, and reachable soon after."""
    monkeypatch.setattr(telemetry, "metric_samples", lambda: {"b": [({}, 61.0)]})
    clock, store = ManualClock(), MessageStore(database)
    await store.open("log", "log")

    async def publish(message: Message) -> None:
        await store.enqueue(message, ("log",))

    watcher = AlertWatcher(publish, clock)
    watcher._rules = [RuleState(LEVEL)]
    await watcher.check()
    await clock.advance(LEVEL.for_s)

    async def unreachable(*_args: Any) -> bool:
        raise UnreachableError("unreachable")

    with monkeypatch.context() as patch:
        patch.setattr(store, "enqueue", unreachable)
        with pytest.raises(UnreachableError):
            await watcher.check()
    for _ in range(3):
        await clock.advance(1)
        await watcher.check()
    assert (await store.backlog("log")).count == 1
