"""Handlers of P2 and P3 that overrun hold nothing up but themselves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from qts.events import (
    Event,
    EventEngine,
    EventsConfig,
    LaneAlert,
    Payload,
    batch,
    monitor,
    replay_audit,
)
from qts.events import payloads as p
from tests.events.conftest import MakeEngine
from tests.events.samples import TIMEOUT_S, evaluate, log_line

# Types of each lane with their payloads.
TYPES: dict[str, list[tuple[str, Payload]]] = {
    "P2": [
        ("SIGNAL_GENERATED", p.SignalPayload(symbol="005930", side="BUY")),
        ("INDICATOR_UPDATE", p.IndicatorUpdate(symbol="005930", indicator="x", value=1.0)),
        ("ORDER_DECISION", p.OrderDecision(symbol="005930", side="BUY", qty=1.0)),
    ],
    "P3": [
        ("REPORT_GENERATE", p.ReportGenerate(report="x")),
        ("METRIC_RECORD", p.MetricRecord(name="x", value=1.0)),
        ("LOG_WRITE", p.LogWrite(message="x")),
    ],
}


class Sleeper:
    """Handler that waits until it is woken."""

    def __init__(self) -> None:
        self.wake = threading.Event()
        self.asleep = threading.Semaphore(0)
        self.calls = 0

    def __call__(self, _event: Event) -> None:
        self.calls += 1
        self.asleep.release()
        assert self.wake.wait(TIMEOUT_S)


class Burner(Sleeper):
    """Handler that uses the CPU until it is woken."""

    def __call__(self, _event: Event) -> None:
        self.calls += 1
        self.asleep.release()
        while not self.wake.is_set():
            sum(range(100))


@pytest.mark.parametrize("stuck", [Sleeper, Burner])
@pytest.mark.parametrize("lane", ["P2", "P3"])
def test_fifty_other_events_do_not_wait_for_a_handler_that_overruns(
    engine: EventEngine, lane: str, stuck: Callable[[], Sleeper]
) -> None:
    handler = stuck()
    done = threading.Semaphore(0)
    (first, held), _, (other, payload) = TYPES[lane]
    engine.on(first, handler)
    engine.on(other, lambda _: done.release())
    # In one batch behind the event whose handler overruns.
    engine.publish_many(
        [engine.new_event(first, held)] + [engine.new_event(other, payload) for _ in range(50)]
    )
    with engine:
        assert handler.asleep.acquire(timeout=TIMEOUT_S)
        began = time.monotonic()
        for _ in range(50):
            assert done.acquire(timeout=TIMEOUT_S)
        took_s = time.monotonic() - began
        assert not handler.wake.is_set()
        handler.wake.set()
        assert engine.wait_drained(TIMEOUT_S)
    assert took_s < TIMEOUT_S / 2, "they waited for it"
    assert engine.status().lanes[lane].handled == 51


@pytest.mark.parametrize("lane", ["P2", "P3"])
def test_two_types_that_sleep_on_every_event_do_not_stop_the_lane(
    engine: EventEngine, lane: str
) -> None:
    sleepers = [Sleeper(), Sleeper()]
    done = threading.Semaphore(0)
    *slow, (other, payload) = TYPES[lane]
    for handler, (name, _) in zip(sleepers, slow, strict=True):
        engine.on(name, handler)
    engine.on(other, lambda _: done.release())
    with engine:
        for _ in range(20):
            for name, held in slow:
                engine.publish(engine.new_event(name, held))
            engine.publish(engine.new_event(other, payload))
        for _ in range(20):
            assert done.acquire(timeout=TIMEOUT_S)
        time.sleep(0.5)  # nothing to wait for: no further call may begin
        calls = [each.calls for each in sleepers]
        assert all(4 <= count <= 8 for count in calls), calls  # the threads are bounded
        for _ in range(10):
            engine.publish(engine.new_event(other, payload))
            assert done.acquire(timeout=TIMEOUT_S)
        for each in sleepers:
            each.wake.set()
        assert engine.wait_drained(TIMEOUT_S)
    assert [each.calls for each in sleepers] == [20, 20]
    assert engine.status().lanes[lane].handled == 70


def test_the_order_of_a_type_is_kept_past_a_handler_that_overruns(engine: EventEngine) -> None:
    handler = Sleeper()
    seen: list[str] = []
    engine.on("REPORT_GENERATE", handler)
    engine.on("LOG_WRITE", lambda event: seen.append(event.payload.message))
    report = engine.new_event("REPORT_GENERATE", p.ReportGenerate(report="x"))
    engine.publish_many([report, *(log_line(engine, f"{number:03}") for number in range(90))])
    with engine:
        assert handler.asleep.acquire(timeout=TIMEOUT_S)
        end = time.monotonic() + TIMEOUT_S
        while len(seen) < 90 and time.monotonic() < end:
            time.sleep(0.01)
        handler.wake.set()
        assert engine.wait_drained(TIMEOUT_S)
    assert seen == [f"{number:03}" for number in range(90)]


def test_a_batch_that_overruns_keeps_its_events(engine: EventEngine) -> None:
    wake = threading.Event()
    calls: list[list[str]] = []
    others: list[str] = []

    def slow(events: list[Event]) -> None:
        calls.append([event.payload.message for event in events])
        assert wake.wait(TIMEOUT_S)

    engine.on("LOG_WRITE", batch(slow))  # type: ignore[arg-type]
    engine.on("METRIC_RECORD", lambda event: others.append(event.payload.name))
    mixed = [
        event
        for number in range(10)
        for event in (
            log_line(engine, str(number)),
            engine.new_event("METRIC_RECORD", p.MetricRecord(name=str(number), value=1.0)),
        )
    ]
    engine.publish_many(mixed)
    with engine:
        end = time.monotonic() + TIMEOUT_S
        while len(others) < 10 and time.monotonic() < end:
            time.sleep(0.01)
        assert others == [str(number) for number in range(10)]
        wake.set()
        assert engine.wait_drained(TIMEOUT_S)
    assert calls == [[str(number) for number in range(10)]]


def test_what_is_put_back_can_be_replayed_from_the_audit(make_engine: MakeEngine) -> None:
    engine = make_engine(EventsConfig(audit_records=100_000))
    handler = Sleeper()
    engine.on("SIGNAL_GENERATED", handler)
    done = threading.Semaphore(0)
    engine.on("STRATEGY_EVALUATE", lambda _: done.release())
    first = engine.new_event("SIGNAL_GENERATED", TYPES["P2"][0][1])
    engine.publish_many([first, *(evaluate(engine, str(number)) for number in range(30))])
    with engine:
        assert handler.asleep.acquire(timeout=TIMEOUT_S)
        engine.publish_many([evaluate(engine, str(number), "new") for number in range(30)])
        for _ in range(60):  # also those that were taken with the event that overruns
            assert done.acquire(timeout=TIMEOUT_S)
        handler.wake.set()
        assert engine.wait_drained(TIMEOUT_S)
    recorded = engine.audit()
    decided = recorded[~((recorded["action"] == 2) | (recorded["action"] == 4))]
    replayed = replay_audit(engine.config, recorded)
    assert 8 in set(recorded["action"])  # returned
    for field in ("sequence", "other", "key", "lane", "action"):
        assert (replayed[field] == decided[field]).all()


def test_a_p3_handler_that_runs_for_5_s_is_reported(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "SLOW_HANDLER_NS", 50_000_000)
    alerts: list[LaneAlert] = []
    engine = make_engine(on_alert=alerts.append)
    handler = Sleeper()
    engine.on("LOG_WRITE", handler)
    with engine:
        engine.publish(log_line(engine))
        end = time.monotonic() + TIMEOUT_S
        while not any("has been running" in alert.text for alert in alerts):
            assert time.monotonic() < end
            time.sleep(0.01)
        handler.wake.set()
        assert engine.wait_drained(TIMEOUT_S)
