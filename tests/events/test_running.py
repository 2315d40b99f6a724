"""The engine on its threads: isolation, failures, retries, acknowledgement, stop."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

from qts.domain import EventRefusedError, OperationError
from qts.events import (
    DegradationLevel,
    Event,
    EventEngine,
    EventsConfig,
    LaneAlert,
    LaneConfig,
    Priority,
    batch,
    compiled,
)
from qts.events import payloads as p
from tests.events.conftest import MakeEngine, codes_into
from tests.events.samples import TIMEOUT_S, evaluate, fill, log_line, order_ids, signal, tick


def test_the_switch_interval_is_short_while_running_and_restored(engine: EventEngine) -> None:
    before = sys.getswitchinterval()
    with engine:
        assert sys.getswitchinterval() == pytest.approx(engine.config.switch_interval_ms / 1000)
    assert sys.getswitchinterval() == before


def test_full_collections_skip_what_was_loaded_before_the_start(engine: EventEngine) -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    loaded = [object.__new__(Cycle)]
    with engine:
        assert gc.get_freeze_count() > frozen
        assert all(each is not loaded for each in gc.get_objects())
        assert gc.get_threshold()[0] > before[0]
        made = Cycle()
        gone = weakref.ref(made)
        del made
        gc.collect()
        assert gone() is None  # what is made since is collected
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_two_engines_that_end_in_any_order_leave_the_interpreter_as_it_was() -> None:
    before = sys.getswitchinterval(), gc.get_threshold()
    first, second = EventEngine(EventsConfig()), EventEngine(EventsConfig())
    first.start()
    second.start()
    first.stop()
    assert gc.get_threshold() != before[1]
    second.stop()
    assert (sys.getswitchinterval(), gc.get_threshold()) == before


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_a_sleeping_p3_handler_delays_no_other_lane(engine: EventEngine) -> None:
    asleep, wake = threading.Event(), threading.Event()
    seen: list[int] = []

    def sleep(_event: Event) -> None:
        asleep.set()
        wake.wait(TIMEOUT_S)

    engine.on("LOG_WRITE", sleep)
    for lane in (Priority.P0, Priority.P1, Priority.P2):
        engine.on(lane, lambda event: seen.append(event.priority))
    with engine:
        engine.publish(log_line(engine))
        engine.publish(log_line(engine))
        assert asleep.wait(TIMEOUT_S)
        for make in (fill, tick, signal):
            engine.publish(make(engine))
        assert engine.wait_drained(TIMEOUT_S, Priority.P0, Priority.P1, Priority.P2)
        assert sorted(seen) == [0, 1, 2]
        assert engine.status().lanes["P3"].waiting == 2
        assert sum(engine.lanes.lock_counts()) >= 1  # another worker took the turn of the sleeper
        wake.set()
        assert engine.wait_drained(TIMEOUT_S)


def test_p0_and_p1_go_ahead_of_a_burning_p2_handler(engine: EventEngine) -> None:
    burning, stop = threading.Event(), threading.Event()
    seen: list[int] = []

    def burn(_event: Event) -> None:
        burning.set()
        while not stop.is_set():
            sum(range(100))

    engine.on("SIGNAL_GENERATED", burn)
    engine.on(Priority.P0, lambda event: seen.append(event.priority))
    engine.on(Priority.P1, lambda event: seen.append(event.priority))
    with engine:
        engine.publish(signal(engine))
        assert burning.wait(TIMEOUT_S)
        for _ in range(20):
            engine.publish(fill(engine))
            engine.publish(tick(engine))
        assert engine.wait_drained(TIMEOUT_S, Priority.P0, Priority.P1)
        assert not stop.is_set()
        assert sorted(seen) == [0] * 20 + [1] * 20
        stop.set()
        assert engine.wait_drained(TIMEOUT_S)


def test_what_waits_at_the_start_is_handled_in_the_order_of_the_lanes(
    make_engine: MakeEngine,
) -> None:
    for _ in range(5):
        engine = make_engine()
        seen: list[int] = []
        for lane in Priority:
            engine.on(lane, lambda event, seen=seen: seen.append(event.priority))
        for _ in range(10):
            for make in (log_line, signal, tick, fill):
                engine.publish(make(engine))
        with engine:
            assert engine.wait_drained(TIMEOUT_S)
        assert seen == [0] * 10 + [1] * 10 + [2] * 10 + [3] * 10


def test_p0_arrives_once_each_and_in_order_under_floods(engine: EventEngine) -> None:
    seen: list[Event] = []
    engine.on("FILL_CONFIRMED", seen.append)
    engine.on("STRATEGY_EVALUATE", lambda _: sum(range(2000)))
    engine.on("LOG_WRITE", lambda _: None)
    stop = threading.Event()

    def flood() -> None:
        low = [evaluate(engine, f"S{n}") for n in range(20)] + [log_line(engine)] * 80
        while not stop.is_set():
            engine.publish_many(low)

    with engine:
        thread = threading.Thread(target=flood)
        thread.start()
        for number in range(2000):
            engine.publish(fill(engine, number))
        assert engine.wait_drained(TIMEOUT_S, Priority.P0)
        stop.set()
        thread.join()
    assert order_ids(seen) == [f"ORD{number}" for number in range(2000)]


def test_a_failing_handler_is_retried_in_place(engine: EventEngine) -> None:
    seen: list[tuple[float, int]] = []

    def fail_twice(event: Event) -> None:
        seen.append((event.payload.price, event.retry_count))
        if event.payload.price == 1 and event.retry_count < 2:
            raise ValueError("not yet")

    engine.on("PRICE_TICK", fail_twice)
    with engine:
        engine.publish(tick(engine, "a", 1.0))
        engine.publish(tick(engine, "b", 2.0))
        assert engine.wait_drained(TIMEOUT_S)
    assert seen == [(1, 0), (1, 1), (1, 2), (2, 0)]
    lane = engine.status().lanes["P1"]
    assert (lane.retried, lane.dead, lane.handled) == (2, 0, 2)


def test_a_handler_that_always_fails_makes_a_dead_letter_and_others_still_run(
    make_engine: MakeEngine,
) -> None:
    codes: list[str] = []
    engine = make_engine(on_alert=codes_into(codes))
    seen: list[Event] = []

    def broken(_event: Event) -> None:
        raise RuntimeError("no such account")

    engine.on("FILL_CONFIRMED", broken)
    engine.on("FILL_CONFIRMED", seen.append)
    with engine:
        engine.publish(fill(engine, 7))
        assert engine.wait_drained(TIMEOUT_S)
        (letter,) = engine.dead_letters.list()
        assert letter.error == "RuntimeError: no such account"
        assert letter.handler.endswith("broken")
        assert order_ids(seen) == ["ORD7"]
        assert codes == ["FS098"]
        assert engine.status().lanes["P0"].dead == 1
        assert engine.replay(letter.number).event_id == letter.event.event_id
        assert engine.wait_drained(TIMEOUT_S)
    assert order_ids(seen) == ["ORD7", "ORD7"]
    with pytest.raises(EventRefusedError, match="no dead letter has number 1"):
        engine.dead_letters.show(1)


def test_only_the_poisoned_events_of_a_failing_batch_die(make_engine: MakeEngine) -> None:
    engine = make_engine(EventsConfig(p1=LaneConfig(queue_size=100, overflow="drop_oldest")))
    done: set[str] = set()

    def handle(events: list[Event]) -> None:
        symbols = [event.payload.symbol for event in events]
        if "poison" in symbols:
            raise ValueError("cannot read this")
        done.update(symbols)

    engine.on("PRICE_TICK", batch(handle))  # type: ignore[arg-type]
    engine.publish_many([tick(engine, symbol) for symbol in ("a", "poison", "b")])
    with engine:
        assert engine.wait_drained(TIMEOUT_S)
    assert done == {"a", "b"}
    lane = engine.status().lanes["P1"]
    assert (lane.handled, lane.dead) == (2, 1)


def test_async_handlers_run_one_event_at_a_time_in_order(engine: EventEngine) -> None:
    seen: list[str] = []
    inside = 0

    async def slow(event: Event) -> None:
        nonlocal inside
        inside += 1
        assert inside == 1
        await asyncio.sleep(0)
        seen.append(event.payload.order_id)
        inside -= 1

    engine.on("FILL_CONFIRMED", slow)
    with engine:
        for number in range(50):
            engine.publish(fill(engine, number))
        assert engine.wait_drained(TIMEOUT_S)
    assert seen == [f"ORD{number}" for number in range(50)]
    assert engine.status().lanes["P0"].handled == 50


def test_a_failing_async_handler_is_retried_then_dead_lettered(engine: EventEngine) -> None:
    tries: list[int] = []

    async def broken(event: Event) -> None:
        tries.append(event.retry_count)
        raise ValueError("no")

    engine.on("SIGNAL_GENERATED", broken)
    with engine:
        engine.publish(signal(engine))
        assert engine.wait_drained(TIMEOUT_S)
    assert tries == [0, 1, 2, 3]
    assert engine.status().lanes["P2"].dead == 1


def test_an_acknowledgement_comes_when_every_handler_is_done(engine: EventEngine) -> None:
    let = threading.Event()
    engine.on("FILL_CONFIRMED", lambda _: let.wait(TIMEOUT_S))
    with engine:
        future = engine.publish_for_ack(fill(engine))
        assert not future.done()
        let.set()
        assert future.result(TIMEOUT_S) is None


def test_an_acknowledgement_fails_with_the_handler(engine: EventEngine) -> None:
    def broken(_event: Event) -> None:
        raise ValueError("no")

    engine.on("FILL_CONFIRMED", broken)
    with engine:
        future = engine.publish_for_ack(fill(engine))
        with pytest.raises(OperationError, match="became a dead letter"):
            future.result(TIMEOUT_S)


def test_an_unacknowledged_type_is_refused_for_ack(engine: EventEngine) -> None:
    with pytest.raises(EventRefusedError, match="not acknowledged"):
        engine.publish_for_ack(tick(engine))


def test_a_compiled_handler_runs_while_another_thread_holds_the_interpreter(
    engine: EventEngine,
) -> None:
    import numba
    from numba.core import types as core

    pointer = core.CPointer(core.float64)  # type: ignore[no-untyped-call]

    @numba.cfunc(core.void(pointer, pointer))
    def add(record, state):  # type: ignore[no-untyped-def]
        numbers = numba.carray(record, (12,))  # type: ignore[attr-defined]
        result = numba.carray(state, (2,))  # type: ignore[attr-defined]
        result[0] += 1
        result[1] += numbers[5]  # values[1]: the price

    state = np.zeros(2)
    engine.on("FILL_CONFIRMED", compiled(add, state))
    with engine:
        for number in range(10):
            engine.publish(fill(engine, number))
        end = time.monotonic() + TIMEOUT_S
        while state[0] < 10 and time.monotonic() < end:
            sorted(range(20_000), reverse=True)  # one long C call after the other
        assert engine.wait_drained(TIMEOUT_S)
    assert state.tolist() == [10.0, 750_000.0]


def test_a_stop_drains_p0_and_p1_and_reports_the_rest(engine: EventEngine) -> None:
    seen: list[int] = []
    for lane in Priority:
        engine.on(lane, lambda event: seen.append(event.priority))
    engine.pause(Priority.P2)
    engine.pause(Priority.P3)
    for make in (fill, tick, signal, log_line):
        engine.publish(make(engine))
    engine.start()
    report = engine.stop()
    assert seen == [0, 1]
    assert report.drained
    assert report.unhandled == {"P2": 1, "P3": 1}
    assert engine.stop() == report


def test_a_failed_thread_raises_an_alert_and_is_restarted(make_engine: MakeEngine) -> None:
    alerts: list[LaneAlert] = []
    engine = make_engine(on_alert=alerts.append)
    seen: list[Event] = []
    engine.on("FILL_CONFIRMED", seen.append)
    engine.on("PRICE_TICK", seen.append)
    with engine:
        for worker in (0, 1, 2):
            engine.lanes.inject_fault(worker)
        end = time.monotonic() + TIMEOUT_S
        while len(alerts) < 3 and time.monotonic() < end:
            engine.check()
        engine.publish(fill(engine))
        engine.publish(tick(engine))
        assert engine.wait_drained(TIMEOUT_S)
    assert len(seen) == 2
    assert "FS096" in [alert.code for alert in alerts]
    assert [alert.kind for alert in alerts if not alert.code] == ["lane", "lane"]


def test_a_restarted_p0_thread_keeps_its_cpu_and_priority(make_engine: MakeEngine) -> None:
    cpu = max(os.sched_getaffinity(0))
    engine = make_engine(EventsConfig(p0_cpu=cpu))
    placements: list[tuple[int, set[int], int]] = []

    def placement(_event: Event) -> None:
        thread = threading.get_native_id()
        placements.append((thread, os.sched_getaffinity(0), os.sched_getscheduler(0)))

    engine.on("FILL_CONFIRMED", placement)
    with engine:
        engine.publish_for_ack(fill(engine)).result(TIMEOUT_S)
        engine.lanes.inject_fault(0)
        end = time.monotonic() + TIMEOUT_S
        while (
            not any(worker == 0 for worker, _ in engine.lanes.faults()) and time.monotonic() < end
        ):
            time.sleep(0.001)
        engine.lanes.restart_worker(0)
        engine.publish_for_ack(fill(engine)).result(TIMEOUT_S)
    (first, *before), (second, *after) = placements
    assert first != second
    assert before == after
    assert before[0] == {cpu}


def test_p0_overflow_is_fs095(make_engine: MakeEngine) -> None:
    codes: list[str] = []
    engine = make_engine(on_alert=codes_into(codes))
    for number in range(100):
        engine.publish(fill(engine, number))
    thread = threading.Thread(target=engine.publish, args=(fill(engine, 100),))
    thread.start()
    end = time.monotonic() + TIMEOUT_S
    while not engine.status().lanes["P0"].blocked and time.monotonic() < end:
        time.sleep(0.001)
    engine.check()
    assert codes == ["FS095"]
    engine.lanes.step(0)
    thread.join()


def test_a_handler_that_makes_p0_wait_is_named(make_engine: MakeEngine) -> None:
    alerts: list[LaneAlert] = []
    engine = make_engine(EventsConfig(gil_stall_ms=1.0), on_alert=alerts.append)
    numbers = list(range(200_000, 0, -1)) * 4

    def hold_the_interpreter(_event: Event) -> None:
        engine.publish(fill(engine))  # P0 has it, and cannot handle it before the sort is over
        sorted(numbers)

    engine.on("SIGNAL_GENERATED", hold_the_interpreter)
    engine.on("FILL_CONFIRMED", lambda _: None)
    with engine:
        end = time.monotonic() + TIMEOUT_S
        while not alerts and time.monotonic() < end:
            engine.publish(signal(engine))
            assert engine.wait_drained(TIMEOUT_S)
            engine.check()
    assert any("hold_the_interpreter" in alert.text for alert in alerts)


def test_a_handler_that_overruns_is_counted(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.on("FILL_CONFIRMED", lambda _: time.sleep(0.03))
    with engine:
        engine.publish(fill(engine))
        assert engine.wait_drained(TIMEOUT_S)
    assert engine.status().lanes["P0"].overran == 1


def test_metrics_cover_every_lane(engine: EventEngine) -> None:
    from qts import telemetry

    engine.on("PRICE_TICK", lambda _: None)
    engine.publish(tick(engine))
    engine.lanes.step(1)
    engine.check()
    text = telemetry.render_metrics().decode()
    for lane in ("P0", "P1", "P2", "P3"):
        assert f'qts_events_depth{{lane="{lane}"}}' in text
    assert 'qts_events_latency_seconds{lane="P1",part="wait",quantile="0.99"}' in text
    assert 'qts_events_total{lane="P1",outcome="handled"}' in text


def test_the_dead_letter_buffer_is_bounded(make_engine: MakeEngine) -> None:
    engine = make_engine(EventsConfig(dead_letters=3))

    def broken(_event: Event) -> None:
        raise ValueError("no")

    engine.on("METRIC_RECORD", broken)
    for number in range(5):
        engine.emit("METRIC_RECORD", p.MetricRecord(name=str(number), value=1.0))
    while engine.lanes.step(3) > 0:
        pass
    assert [letter.number for letter in engine.dead_letters.list()] == [5, 4, 3]
    assert (engine.dead_letters.count, engine.dead_letters.evicted) == (5, 2)


def test_a_handler_cannot_stop_its_own_engine(engine: EventEngine) -> None:
    refused: list[str] = []

    def stop(_event: Event) -> None:
        try:
            engine.stop()
        except EventRefusedError as error:
            refused.append(str(error))

    engine.on("EMERGENCY_STOP", stop)
    with engine:
        engine.emit("EMERGENCY_STOP", p.Emergency(reason="test"))
        assert engine.wait_drained(TIMEOUT_S)
    assert refused == ["a handler cannot stop the engine that runs it; stop it from another thread"]


def test_in_level_3_only_essential_async_handlers_run(engine: EventEngine) -> None:
    seen: list[str] = []

    async def risk(_event: Event) -> None:
        seen.append("risk")

    async def chart(_event: Event) -> None:
        seen.append("chart")

    engine.on("PRICE_TICK", risk, essential=True)
    engine.on("PRICE_TICK", chart)
    with engine:
        engine.degrade(DegradationLevel.CRITICAL_ONLY)
        engine.publish(tick(engine))
        assert engine.wait_drained(TIMEOUT_S, Priority.P1)
    assert seen == ["risk"]


NO_MORE_THREADS = """
import resource, time
from qts.events import EventEngine
from tests.events.samples import tick

alerts, seen = [], []
engine = EventEngine(on_alert=lambda alert: alerts.append((alert.code, alert.text)))
engine.on("PRICE_TICK", seen.append)
engine.start()
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 20), resource.RLIM_INFINITY))
for worker in (1, 2):
    engine.lanes.inject_fault(worker)
end = time.monotonic() + 20
while len([code for code, _ in alerts if code == "FS097"]) < 2 and time.monotonic() < end:
    engine.check()
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
engine.publish(tick(engine))
assert engine.wait_drained(20), "it was not restarted"
print(sorted({code for code, _ in alerts}), len(seen), engine.stop().ended)
print([text for code, text in alerts if code][0])
"""


def test_a_p1_thread_that_cannot_be_restarted_is_fs097_and_retried() -> None:
    """In a separate process, whose address space cannot hold another stack."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", NO_MORE_THREADS],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=root,
    )
    assert done.stdout.splitlines()[:1] == ["['', 'FS097'] 1 True"], done.stderr
    assert "P1's lane could not be restarted" in done.stdout


EXIT = """
from qts.events import EventEngine
from qts.events import payloads as p
engine = EventEngine()
engine.on("PRICE_TICK", lambda event: None)
engine.start()
for n in range(1000):
    engine.emit("PRICE_TICK", p.PriceTick(symbol=str(n), price=1.0))
print("end", flush=True)
"""


def test_a_program_without_a_stop_ends_cleanly() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "end\n")
    assert "leaked" not in done.stderr
