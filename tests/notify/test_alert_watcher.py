"""Rules held against figures over time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts import telemetry
from qts.database import Database
from qts.domain import ManualClock, UnreachableError
from qts.notify import RULES, AlertRule, NotificationService, NotifyConfig
from qts.notify.alert_watcher import AGAIN_S, AlertWatcher, RuleState, Samples
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
    held = RuleState(GROWTH)
    assert held.look(counted(10), at(0)) is None
    assert held.look(counted(12), at(200)) is None
    assert held.look(counted(13), at(400)) is None  # 3 in all, but 2 of them are long ago
    assert held.look(counted(16), at(500)) == 4


def test_a_figure_has_to_last() -> None:
    held = RuleState(LEVEL)
    high = {"b": [({"x": "1"}, 10.0), ({"x": "2"}, 61.0)]}
    assert held.look(high, at(0)) is None
    assert held.look({"b": [({}, 60.0)]}, at(20)) is None  # not above: it begins anew
    assert held.look(high, at(25)) is None
    assert held.look(high, at(54)) is None
    assert held.look(high, at(55)) == 61


def test_a_rule_that_goes_on_is_told_seldom() -> None:
    held = RuleState(LEVEL)
    high: Samples = {"b": [({}, 61.0)]}
    told = [second for second in range(0, 3600, 5) if held.look(high, at(second)) is not None]
    assert told == [30, 30 + AGAIN_S, 30 + 2 * AGAIN_S, 30 + 3 * AGAIN_S]


def test_what_is_not_measured_says_nothing() -> None:
    assert RuleState(LEVEL).look({}, at(0)) is None
    low = AlertRule(
        name="Low", metric="free", op="<", threshold=0.1, severity="critical", text="t", action="a"
    )
    assert RuleState(low).look({}, at(0)) is None
    assert RuleState(low).look({"free": [({}, 0.05), ({}, 0.9)]}, at(0)) == 0.05


@given(st.lists(st.tuples(st.floats(0.1, 100), st.integers(0, 3)), max_size=60))
def test_growth_is_the_difference_over_the_window(steps: list[tuple[float, int]]) -> None:
    rule = AlertRule(
        name="Any", metric="a_total", labels={"status": "BAD"}, window_s=300, threshold=1,
        severity="info", text="t", action="a",
    )  # fmt: skip
    held, now, total = RuleState(rule), 0.0, 0
    seen: list[tuple[float, int]] = []
    for after, grown in steps:
        now, total = now + after, total + grown
        seen.append((now, total))
        first = next(count for moment, count in seen if at(now) - at(moment) <= at(300))
        assert held._figure(counted(total), at(now)) == total - first


def test_names_are_one_of_a_kind_and_every_rule_says_what_to_do() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.action and rule.text for rule in RULES)
    critical = {rule.name for rule in RULES if rule.severity == "critical"}
    assert {"OrderUnknown", "OrdersThrottled", "CommandBacklog", "DiskFull"} <= critical


async def test_an_order_that_waits_for_a_minute_is_told(database: Database) -> None:
    gauge = telemetry.gauge(
        "everbit_outbox_oldest_pending_seconds",
        "How long the oldest due event has waited.",
        ("stream",),
    )
    clock = ManualClock()
    async with NotificationService.open(database, NotifyConfig(log=True), clock) as notifications:
        gauge.labels("everbit.trade.command").set(61)
        try:
            await notifications.alarms.look()
            await notifications.alarms.look()
        finally:
            gauge.labels("everbit.trade.command").set(0)
        titles = [message.title for message in await notifications.book.recent()]
    wanted = "CommandBacklog: an order has waited for more than a minute to leave"
    assert titles.count(wanted) == 1


async def test_an_error_of_ours_does_not_end_the_run(database: Database) -> None:
    clock = ManualClock()
    async with NotificationService.open(database, NotifyConfig(log=True), clock) as notifications:
        failures = asyncio.Event()

        async def broken() -> None:
            failures.set()
            raise RuntimeError("a bug")

        async def waiting() -> bool:
            return bool(clock._sleepers)

        notifications.alarms.run = broken  # type: ignore[method-assign]
        task = asyncio.create_task(notifications.run())
        for _ in range(3):
            await asyncio.wait_for(failures.wait(), 5)
            failures.clear()
            await until(waiting)
            await clock.advance(5)
        assert not task.done()
        task.cancel()
        await asyncio.wait({task})


async def test_what_could_not_be_written_down_is_told_at_the_next_look(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figure is high while the database is away, and fine again soon after."""
    monkeypatch.setattr(telemetry, "samples", lambda: {"b": [({}, 61.0)]})
    clock, book = ManualClock(), MessageStore(database)
    await book.open("log", "log")
    alarms = AlertWatcher(database, book, ("log",), clock, lambda: None)
    alarms._rules = [RuleState(LEVEL)]
    await alarms.look()
    await clock.advance(LEVEL.for_s)

    async def away(*_words: Any) -> bool:
        raise UnreachableError("away")

    with monkeypatch.context() as patch:
        patch.setattr(book, "note", away)
        with pytest.raises(UnreachableError):
            await alarms.look()
    for _ in range(3):
        await clock.advance(1)
        await alarms.look()
    assert (await book.waiting("log")).count == 1
