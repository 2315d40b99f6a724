"""Pressure and degradation levels: entered at once, left step by step, without flapping."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.domain import OperationError
from qts.events import (
    Catalogue,
    DegradationLevel,
    Event,
    EventsConfig,
    EventType,
    LaneAlert,
    LaneConfig,
    Pressure,
    Priority,
    batch,
)
from qts.events.payloads import PriceTick
from qts.events.status import DegradationController, EngineStatus, LaneMetrics
from tests.events.conftest import MakeEngine
from tests.events.samples import TIMEOUT_S, fill, log_line, signal, step_all, tick

RECOVERY_CHECKS = 3


def check(load: DegradationController, fills: Sequence[float], times: int = 1) -> DegradationLevel:
    for _ in range(times):
        load.check(fills)
    return load.level


@pytest.fixture
def load() -> DegradationController:
    return DegradationController(EventsConfig(recovery_checks=RECOVERY_CHECKS))


def test_levels_rise_and_fall_with_the_load(load: DegradationController) -> None:
    levels = [load.level]
    for fills in (
        [0, 0.75, 0, 0],
        [0, 0.95, 0, 0],
        [0.9, 0.95, 0, 0],
        *[[0.0, 0.0, 0.0, 0.0]] * (3 * RECOVERY_CHECKS),
    ):
        if check(load, fills) != levels[-1]:
            levels.append(load.level)
    assert levels == [0, 1, 2, 3, 2, 1, 0]


def test_a_level_is_not_left_before_enough_checks_at_lower_load(
    load: DegradationController,
) -> None:
    check(load, [0, 0.95, 0, 0])
    for _ in range(10):  # lower load, but never long enough
        assert check(load, [0, 0, 0, 0], RECOVERY_CHECKS - 1) == DegradationLevel.P2_P3_PAUSED
        assert check(load, [0, 0.95, 0, 0]) == DegradationLevel.P2_P3_PAUSED


def test_pressure_ends_a_tenth_below_its_threshold(load: DegradationController) -> None:
    assert load.check([0, 0.70, 0, 0]).pressures[1] == Pressure.WARNING
    assert load.check([0, 0.61, 0, 0]).pressures[1] == Pressure.WARNING
    assert load.check([0, 0.59, 0, 0]).pressures[1] == Pressure.NORMAL


@given(st.lists(st.lists(st.floats(0, 1), min_size=4, max_size=4), max_size=60))
def test_levels_fall_one_step_at_a_time_after_enough_checks(checks: list[list[float]]) -> None:
    load = DegradationController(EventsConfig(recovery_checks=RECOVERY_CHECKS))
    since = RECOVERY_CHECKS
    for fills in checks:
        before = load.level
        load.check(fills)
        if load.level < before:
            assert before - load.level == 1
            assert since >= RECOVERY_CHECKS
        since = 1 if load.level != before else since + 1


def test_a_manual_level_stays(load: DegradationController) -> None:
    load.manual_level = DegradationLevel.P3_PAUSED
    assert check(load, [1, 1, 1, 1], 5) == DegradationLevel.P3_PAUSED
    load.manual_level = None
    assert check(load, [1, 1, 1, 1]) == DegradationLevel.CRITICAL_ONLY


def test_a_full_p1_pauses_lower_lanes_until_it_drains(make_engine: MakeEngine) -> None:
    alerts: list[LaneAlert] = []
    lane = LaneConfig(queue_size=10, overflow="drop_oldest")
    engine = make_engine(EventsConfig(p1=lane, recovery_checks=1), on_alert=alerts.append)
    engine.publish_many([tick(engine, str(number)) for number in range(10)])
    engine.publish(signal(engine))
    engine.publish(log_line(engine))
    engine.check()
    assert engine.status().level == "LEVEL_2 P2_P3_PAUSED"
    assert step_all(engine) == 10  # P1 alone
    for _ in range(3):
        engine.check()
    assert engine.status().level == "LEVEL_0 NORMAL"
    assert step_all(engine) == 2
    texts = [alert.text for alert in alerts]
    assert "P1 is 100% full: CRITICAL" in texts
    assert "degradation LEVEL_0 to LEVEL_2 P2_P3_PAUSED" in texts
    assert "degradation LEVEL_1 to LEVEL_0 NORMAL" in texts


def test_pressure_doubles_the_batch(make_engine: MakeEngine) -> None:
    config = EventsConfig(p1=LaneConfig(queue_size=10, overflow="drop_oldest", batch_size=2))
    engine = make_engine(config)
    engine.publish_many([tick(engine, str(number)) for number in range(10)])
    engine.check()
    engine.lanes.step(1)
    assert engine.status().lanes["P1"].depth == 6  # four taken at once, not two


def test_in_level_3_only_essential_handlers_get_prices(make_engine: MakeEngine) -> None:
    alerts: list[LaneAlert] = []
    engine = make_engine(on_alert=alerts.append)
    risk: list[float] = []
    chart: list[float] = []
    fills: list[str] = []
    engine.on("PRICE_TICK", lambda event: chart.append(event.payload.price))
    engine.on("PRICE_TICK", lambda event: risk.append(event.payload.price), essential=True)
    engine.on("FILL_CONFIRMED", lambda event: fills.append(event.payload.order_id))
    engine.degrade(DegradationLevel.CRITICAL_ONLY)
    engine.publish(tick(engine, price=1.0))
    engine.publish(signal(engine))
    engine.publish(log_line(engine))
    engine.publish(fill(engine))
    assert step_all(engine) == 2
    assert (risk, chart, fills) == ([1.0], [], ["ORD0"])
    assert [alert.code for alert in alerts if alert.code] == ["GR090"]
    engine.degrade(DegradationLevel.NORMAL)
    assert step_all(engine) == 2


@pytest.mark.parametrize("kind", ["plain", "batch", "async"])
def test_what_level_3_discards_counts_as_dropped(make_engine: MakeEngine, kind: str) -> None:
    engine = make_engine()
    seen: list[Event] = []

    async def wait(event: Event) -> None:
        seen.append(event)

    handlers = {"plain": seen.append, "batch": batch(seen.extend), "async": wait}
    engine.on("PRICE_TICK", handlers[kind])  # type: ignore[arg-type]
    engine.degrade(DegradationLevel.CRITICAL_ONLY)
    engine.publish_many([tick(engine, symbol) for symbol in ("a", "a", "b")])
    with engine:
        assert engine.wait_drained(TIMEOUT_S, Priority.P1)
        lane = engine.status().lanes["P1"]
    assert (lane.handled, lane.dropped, seen) == (0, 3, [])
    assert lane.total.count == 0
    assert engine.dropped() == {"PRICE_TICK": {"a": 2, "b": 1}}


def test_an_acknowledgement_of_a_discarded_event_fails(make_engine: MakeEngine) -> None:
    catalogue = Catalogue()
    catalogue.register(EventType("QUOTE", Priority.P1, PriceTick, requires_ack=True))
    engine = make_engine(catalogue=catalogue)
    engine.on("QUOTE", lambda _: None)
    with engine:
        engine.degrade(DegradationLevel.CRITICAL_ONLY)
        payload = PriceTick(symbol="a", price=1.0)
        future = engine.publish_for_ack(engine.new_event("QUOTE", payload))
        with pytest.raises(OperationError, match="was dropped at LEVEL_3"):
            future.result(TIMEOUT_S)


def test_a_manually_paused_lane_stays_paused_when_the_level_falls(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.pause(Priority.P3)
    engine.degrade(DegradationLevel.P3_PAUSED)
    engine.degrade(DegradationLevel.NORMAL)
    assert engine.lanes.paused(3)


def test_a_check_beside_another_updates_no_metric_with_an_older_status(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator sets a level while the monitor checks: both read counts and add them up."""
    engine, other, update = make_engine(), list[Thread](), LaneMetrics.update

    def delayed(metrics: LaneMetrics, status: EngineStatus) -> None:
        if not other:  # another check starts, and may end, before this one goes on
            other.append(Thread(target=engine.check))
            engine.publish(log_line(engine))
            other[0].start()
            other[0].join(0.3)
        update(metrics, status)

    monkeypatch.setattr(LaneMetrics, "update", delayed)
    engine.check()
    other[0].join(TIMEOUT_S)
    assert not other[0].is_alive()
