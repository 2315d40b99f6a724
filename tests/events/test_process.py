"""Lanes whose handlers run in an isolated process: the same behaviour as in threads."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from qts.domain import EventRefusedError, OperationError
from qts.events import (
    AUDIT_ACTIONS,
    DegradationLevel,
    Event,
    EventsConfig,
    LaneAlert,
    LaneConfig,
    Priority,
    batch,
    compiled,
    factory,
    rows,
)
from qts.events import payloads as p
from qts.events.in_flight import InFlightFrame, InFlightWindow
from qts.events.lane_process import LaneFeeder
from tests.events import isolated
from tests.events.conftest import MakeEngine, check_conservation, codes_into
from tests.events.samples import TIMEOUT_S, evaluate, fill, log_line, tick
from tests.events.samples import signal as sample_signal


def isolated_lanes(*names: str, **settings: Any) -> EventsConfig:
    """Return settings that isolate these lanes; `p2=dict(queue_size=5)` changes one."""
    default = EventsConfig()
    parts: dict[str, Any] = {}
    for name in {*names, *(key for key in settings if key in ("p1", "p2", "p3"))}:
        more = {"isolation": "process"} if name in names else {}
        parts[name] = msgspec.structs.replace(
            getattr(default, name), **more, **settings.pop(name, {})
        )
    return EventsConfig(**parts, **settings)


def wait_until(condition: Any) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.002)


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "trace"
    monkeypatch.setenv(isolated.TRACE, str(path))
    return path


def test_handlers_run_in_another_process_in_the_order_of_publishing(
    make_engine: MakeEngine, trace: Path
) -> None:
    engine = make_engine(isolated_lanes("p2"))
    engine.on("SIGNAL_GENERATED", isolated.note)
    with engine:
        for number in range(500):
            engine.publish(sample_signal(engine, str(number)))
        assert engine.wait_drained(TIMEOUT_S)
    assert isolated.lines(trace) == [[str(number), "0"] for number in range(500)]
    assert os.getpid() not in isolated.pids(trace)
    lane = engine.status().lanes["P2"]
    assert (lane.handled, lane.wait.count, lane.handling.count) == (500, 500, 500)


def test_all_kinds_of_handlers_run_there(make_engine: MakeEngine, trace: Path) -> None:
    engine = make_engine(isolated_lanes("p1", "p2", "p3"))
    engine.on("PRICE_TICK", rows(isolated.note_rows))
    engine.on("SIGNAL_GENERATED", batch(isolated.note_batch))
    engine.on("STRATEGY_SIGNAL", factory(isolated.make_batch))
    engine.on("INDICATOR_UPDATE", isolated.note_async)
    engine.on("LOG_WRITE", isolated.note_line)
    strategy = engine.new_event(
        "STRATEGY_SIGNAL", p.SignalPayload(symbol="b", side="BUY", strength=0.0)
    )
    indicator = p.IndicatorUpdate(symbol="c", indicator="x", value=1.0)
    with engine:
        engine.publish(tick(engine, "t", 5.0))
        for _ in range(2):
            engine.publish(sample_signal(engine, "a"))
            engine.publish(strategy)
        engine.emit("INDICATOR_UPDATE", indicator)
        engine.publish(log_line(engine, "line"))
        assert engine.wait_drained(TIMEOUT_S)
    assert sorted(isolated.lines(trace)) == [
        ["batch", "a", "a"],
        ["batch", "b", "b"],
        ["c", "0"],
        ["line", "0"],
        ["rows", "t", "5.0"],
    ]


def test_retries_in_the_process_are_counted_in_the_engine(
    make_engine: MakeEngine, trace: Path
) -> None:
    engine = make_engine(isolated_lanes("p2", audit_records=100))
    engine.on("SIGNAL_GENERATED", isolated.fail_twice)
    engine.on("STRATEGY_SIGNAL", isolated.fail)
    with engine:
        engine.publish(sample_signal(engine, "a"))
        engine.emit("STRATEGY_SIGNAL", p.SignalPayload(symbol="b", side="BUY", strength=0.0))
        assert engine.wait_drained(TIMEOUT_S)
    assert isolated.lines(trace) == [["a", "0"], ["a", "1"], ["a", "2"]]
    lane = engine.status().lanes["P2"]
    assert (lane.handled, lane.dead, lane.retried) == (1, 1, 5)
    (letter,) = engine.dead_letters.list()
    assert (letter.error, letter.handler) == ("ValueError: no b", "tests.events.isolated.fail")
    actions = Counter(AUDIT_ACTIONS[row["action"]] for row in engine.audit())
    assert actions == {"published": 2, "taken": 2, "retried": 5, "handled": 1, "dead": 1}


def test_a_strategy_created_in_the_process_publishes_to_the_engine(
    make_engine: MakeEngine, trace: Path
) -> None:
    engine = make_engine(isolated_lanes("p2"))
    fills: list[Event] = []
    engine.on("STRATEGY_EVALUATE", factory(isolated.Strategy))
    engine.on("STRATEGY_SIGNAL", isolated.note)
    engine.on("FILL_CONFIRMED", fills.append)
    with engine:
        engine.publish(evaluate(engine, "SCALP"))
        wait_until(lambda: fills and ["SCALP", "0"] in isolated.lines(trace))
        assert engine.wait_drained(TIMEOUT_S)
    assert isolated.lines(trace)[0] == ["created", "True"]
    assert (fills[0].source, fills[0].payload.filled_price) == ("STRATEGY", 2.0)


def test_a_factory_in_a_thread_lane_gets_the_engine(make_engine: MakeEngine, trace: Path) -> None:
    engine = make_engine()
    signals: list[str] = []
    engine.on("STRATEGY_EVALUATE", factory(isolated.Strategy))
    engine.on("STRATEGY_SIGNAL", lambda event: signals.append(event.payload.symbol))
    with pytest.raises(EventRefusedError, match="already registered for STRATEGY_EVALUATE"):
        engine.on("STRATEGY_EVALUATE", factory(isolated.Strategy))
    with engine:
        engine.publish(evaluate(engine, "SWING"))
        assert engine.wait_drained(TIMEOUT_S)
    assert signals == ["SWING"]


def test_a_process_may_publish_into_its_own_full_lane(make_engine: MakeEngine, trace: Path) -> None:
    engine = make_engine(isolated_lanes("p2", p2={"queue_size": 4, "batch_size": 1}))
    engine.on("SIGNAL_GENERATED", factory(isolated.many_signals))
    with engine:
        engine.publish(sample_signal(engine, "first"))
        wait_until(lambda: len(isolated.lines(trace)) == 51)
        assert engine.wait_drained(TIMEOUT_S)
    assert engine.status().lanes["P2"].over > 0


def test_an_invalid_event_is_refused_in_the_handler(make_engine: MakeEngine) -> None:
    engine = make_engine(isolated_lanes("p2"))
    engine.on("STRATEGY_EVALUATE", factory(isolated.publish_invalid))
    with engine:
        engine.publish(evaluate(engine))
        assert engine.wait_drained(TIMEOUT_S)
    (letter,) = engine.dead_letters.list()
    assert "EventRefusedError: SIGNAL_GENERATED: the payload does not fit" in letter.error


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (lambda _: None, "cannot run in P2's process.*module-level function"),
        (threading.Event().wait, "cannot run in P2's process"),
        (compiled(1234), 'compiled handler.*it needs events.p2.isolation = "thread"'),
    ],
)
def test_a_handler_that_cannot_be_isolated_is_refused(
    make_engine: MakeEngine, handler: Any, message: str
) -> None:
    engine = make_engine(isolated_lanes("p2"))
    with pytest.raises(EventRefusedError, match=message) as refused:
        engine.on("SIGNAL_GENERATED", handler)
    assert "SIGNAL_GENERATED" in str(refused.value)
    engine.on("PRICE_TICK", lambda _: None)  # P1 is not isolated


def test_a_factory_that_fails_fails_the_start(make_engine: MakeEngine) -> None:
    engine = make_engine(isolated_lanes("p2", "p3"))
    engine.on("SIGNAL_GENERATED", factory(isolated.failing_factory))
    with pytest.raises(
        OperationError, match=r"P2's process could not create its handlers.*no model file"
    ):
        engine.start()
    assert engine.pids() == {}


def test_p0_cannot_be_isolated() -> None:
    lane = LaneConfig(queue_size=100, overflow="block", isolation="process")
    with pytest.raises(ValueError, match=r'p0\.isolation must stay "thread"'):
        EventsConfig(p0=lane)


def test_in_level_3_only_essential_handlers_run_there(make_engine: MakeEngine, trace: Path) -> None:
    engine = make_engine(isolated_lanes("p1"))
    engine.on("PRICE_TICK", isolated.note_price)
    engine.on("PRICE_TICK", isolated.guard_price, essential=True)
    with engine:
        engine.degrade(DegradationLevel.CRITICAL_ONLY)
        engine.publish(tick(engine, price=1.0))
        assert engine.wait_drained(TIMEOUT_S, Priority.P1)
        engine.degrade(DegradationLevel.NORMAL)
        engine.publish(tick(engine, price=2.0))
        assert engine.wait_drained(TIMEOUT_S, Priority.P1)
    assert isolated.lines(trace) == [["risk", "1.0"], ["chart", "2.0"], ["risk", "2.0"]]


def test_a_paused_lane_waits_here_and_there(make_engine: MakeEngine, trace: Path) -> None:
    engine = make_engine(isolated_lanes("p2"))
    engine.on("SIGNAL_GENERATED", isolated.note)
    engine.pause(Priority.P2)
    with engine:
        engine.publish(sample_signal(engine, "a"))
        assert not engine.wait_drained(0.2, Priority.P2)
        assert isolated.lines(trace) == []
        engine.resume(Priority.P2)
        assert engine.wait_drained(TIMEOUT_S)
    assert isolated.lines(trace) == [["a", "0"]]


class SlowerSinceTheWait(InFlightWindow):
    """Window in which a slow frame ends between the wait for capacity and the look at it."""

    def wait(self, seconds: float) -> bool:
        may_feed = super().wait(seconds)
        self.finish(2, 10**9)
        return may_feed


def test_a_lane_whose_handlers_have_become_slow_is_not_fed() -> None:
    window = SlowerSinceTheWait(batch=256, threads=1)
    window.child = child = cast("Any", object())
    for number in (1, 2):
        assert window.register(number, InFlightFrame([(cast("Any", None), number)])) is child
    window.add_taken(100)
    window.finish(1, 1000)
    lanes: Any = None  # nothing is taken
    assert LaneFeeder(2, lanes, cast("Any", {}), False, window, cast("Any", None))._next() == []
    assert window.capacity < 0


def test_in_flight_events_are_limited_so_that_the_overflow_policy_applies(
    make_engine: MakeEngine, trace: Path
) -> None:
    config = isolated_lanes("p3", p3={"queue_size": 10, "batch_size": 3, "process_threads": 1})
    engine = make_engine(config)
    engine.on("LOG_WRITE", isolated.sleep)
    engine.start()
    engine.publish_many([log_line(engine)] * 6)
    wait_until(lambda: engine.status().lanes["P3"].depth == 4 and isolated.lines(trace))
    engine.publish_many([log_line(engine)] * 36)
    lane = engine.status().lanes["P3"]
    assert (lane.depth, lane.waiting) == (10, 12)  # one being handled, one in the ring
    assert (lane.sampled, lane.dropped) == (27, 3)
    engine.lanes.halt(1)
    os.kill(engine.pids()["P3"], signal.SIGKILL)
    # The handler never returns; its event is still counted.
    report = engine.stop()
    assert report.unhandled == {"P3": 12}


def test_a_handler_that_overruns_there_is_counted(make_engine: MakeEngine) -> None:
    config = isolated_lanes("p2")
    from qts.events import Catalogue, EventType

    catalogue = Catalogue()
    catalogue.register(
        EventType("QUICK_CALL", Priority.P2, p.SignalPayload, "symbol", max_process_time_ms=10)
    )
    engine = make_engine(config, catalogue)
    engine.on("QUICK_CALL", isolated.sleep_50_ms)
    with engine:
        engine.emit("QUICK_CALL", p.SignalPayload(symbol="a", side="BUY", strength=0.0))
        assert engine.wait_drained(TIMEOUT_S)
    lane = engine.status().lanes["P2"]
    assert lane.overran == 1
    assert lane.handling.max >= 50


def test_an_acknowledgement_comes_from_the_process(make_engine: MakeEngine, trace: Path) -> None:
    from qts.events import Catalogue, EventType

    catalogue = Catalogue()
    for name in ("ASKED_CALL", "LOST_CALL"):
        catalogue.register(
            EventType(name, Priority.P2, p.SignalPayload, "symbol", requires_ack=True)
        )
    engine = make_engine(isolated_lanes("p2"), catalogue)
    engine.on("ASKED_CALL", isolated.note)
    engine.on("LOST_CALL", isolated.fail)
    payload = p.SignalPayload(symbol="a", side="BUY", strength=0.0)
    with engine:
        done = engine.publish_for_ack(engine.new_event("ASKED_CALL", payload))
        lost = engine.publish_for_ack(engine.new_event("LOST_CALL", payload))
        assert done.result(TIMEOUT_S) is None
        with pytest.raises(OperationError, match="became a dead letter"):
            lost.result(TIMEOUT_S)


def test_an_event_too_large_for_the_ring_is_a_dead_letter(
    make_engine: MakeEngine, trace: Path
) -> None:
    engine = make_engine(isolated_lanes("p3"))
    engine.on("LOG_WRITE", isolated.note_line)
    with engine:
        engine.publish(msgspec.structs.replace(log_line(engine, "large"), source="x" * (5 << 20)))
        engine.publish(log_line(engine, "small"))
        assert engine.wait_drained(TIMEOUT_S)
    (letter,) = engine.dead_letters.list()
    assert "cannot be sent to its process" in letter.error
    assert isolated.lines(trace) == [["small", "0"]]


# --- crashes ------------------------------------------------------------------------------------


def test_only_the_event_that_ends_its_process_dies(make_engine: MakeEngine, trace: Path) -> None:
    alerts: list[LaneAlert] = []
    engine = make_engine(isolated_lanes("p2"), on_alert=alerts.append)
    engine.on("SIGNAL_GENERATED", isolated.exit_on_poison)
    symbols = ["a", "b", "poison", "c", "d"]
    with engine:
        engine.publish_many([sample_signal(engine, symbol) for symbol in symbols])
        assert engine.wait_drained(TIMEOUT_S)
    assert isolated.lines(trace) == [
        ["a", "0"],
        ["b", "0"],
        *[["poison", str(tried)] for tried in range(4)],
        ["c", "0"],
        ["d", "0"],
    ]
    lane = engine.status().lanes["P2"]
    assert (lane.handled, lane.dead, lane.retried) == (4, 1, 3)
    (letter,) = engine.dead_letters.list()
    assert (
        letter.error == "its process ended with exit code 3 in tests.events.isolated.exit_on_poison"
    )
    assert sum("restarting it" in alert.text for alert in alerts) == 4


def test_only_the_poisoned_events_of_a_batch_that_kills_its_process_die(
    make_engine: MakeEngine, trace: Path
) -> None:
    engine = make_engine(isolated_lanes("p2"))
    engine.on("SIGNAL_GENERATED", batch(isolated.kill_on_negative_strength))
    strengths = [1.0, -1.0, 2.0]
    engine.publish_many([sample_signal(engine, "s", strength) for strength in strengths])
    with engine:
        assert engine.wait_drained(TIMEOUT_S)
    lane = engine.status().lanes["P2"]
    assert (lane.handled, lane.dead) == (2, 1)
    assert isolated.lines(trace)[0] == ["batch", "s", "s", "s"]
    assert all(line == ["batch", "s"] for line in isolated.lines(trace)[1:])


def test_sys_exit_on_any_thread_of_the_process_kills_one_event(
    make_engine: MakeEngine, trace: Path
) -> None:
    engine = make_engine(isolated_lanes("p3", p3={"process_threads": 3}))
    engine.on("LOG_WRITE", isolated.sys_exit_on_poison)
    words = ["a", "b", "poison", "c", "d"]
    with engine:
        engine.publish_many([log_line(engine, word) for word in words])
        assert engine.wait_drained(TIMEOUT_S)
    lane = engine.status().lanes["P3"]
    assert (lane.handled, lane.dead) == (4, 1)
    assert {line[0] for line in isolated.lines(trace)} == set(words)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_kill_9_during_a_flood_loses_nothing_and_does_not_delay_p0(
    make_engine: MakeEngine, trace: Path, seed: int
) -> None:
    """Checked against the trace that the handlers wrote."""
    chance = random.Random(seed)  # noqa: S311 - reproducible
    engine = make_engine(isolated_lanes("p2", "p3", p3={"process_threads": 2}))
    engine.on("SIGNAL_GENERATED", isolated.busy_for_1_ms)
    engine.on("LOG_WRITE", isolated.busy_for_1_ms)
    fills: list[Event] = []
    engine.on("FILL_CONFIRMED", fills.append)
    sent = [make(engine) for _ in range(400) for make in (sample_signal, log_line)]
    with engine:
        flood = threading.Thread(target=engine.publish_many, args=(sent,))
        flood.start()
        for number in range(6):
            enough = chance.randrange(20, 100) + len(isolated.lines(trace))
            wait_until(lambda enough=enough: len(isolated.lines(trace)) >= min(enough, 700))
            lane = chance.choice(["P2", "P3"])
            wait_until(lambda lane=lane: engine.pids()[lane])
            os.kill(engine.pids()[lane], signal.SIGKILL)
            engine.publish(fill(engine, number))
            assert engine.wait_drained(TIMEOUT_S, Priority.P0)
        flood.join()
        assert engine.wait_drained(60)
        check_conservation(engine)
    assert len(fills) == 6
    seen = Counter(line[1] for line in isolated.lines(trace))
    assert set(seen) == {event.event_id for event in sent}
    status = engine.status().lanes
    assert status["P2"].handled == status["P3"].handled == 400
    # A kill between a handler's return and its result repeats at most one event per thread.
    assert sum(seen.values()) - len(seen) <= 6 * 2


def test_a_p1_process_that_cannot_be_restarted_is_fs097(
    make_engine: MakeEngine, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[str] = []
    engine = make_engine(isolated_lanes("p1"), on_alert=codes_into(codes))
    engine.on("PRICE_TICK", isolated.note_price)
    with engine:
        with monkeypatch.context() as broken:
            broken.setattr("multiprocessing.spawn._python_exe", b"/no/such/python")
            os.kill(engine.pids()["P1"], signal.SIGKILL)
            wait_until(lambda: len(codes) >= 2)
            engine.publish(tick(engine, price=7.0))
        assert engine.wait_drained(TIMEOUT_S, Priority.P1)
    assert set(codes) == {"FS097"}
    assert isolated.lines(trace) == [["chart", "7.0"]]


ORPHAN = """
import os, sys, time
from qts.events import EventEngine, EventsConfig, LaneConfig
from tests.events import isolated
from tests.events.samples import log_line

if __name__ == "__main__":
    lane = LaneConfig(queue_size=10, overflow="sample", isolation="process")
    engine = EventEngine(EventsConfig(p3=lane))
    engine.on("LOG_WRITE", isolated.sleep)
    engine.start()
    engine.publish(log_line(engine))
    print(engine.pids()["P3"], flush=True)
    time.sleep(3600)
"""


def test_a_process_dies_with_its_engine(trace: Path, tmp_path: Path) -> None:
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        wait_until(lambda: isolated.lines(trace) == [["asleep"]])
        parent.kill()
    wait_until(lambda: not Path(f"/proc/{child}").exists() or _zombie(child))


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


UNGUARDED = """
from qts.events import EventEngine, EventsConfig, LaneConfig
from tests.events import isolated

lane = LaneConfig(queue_size=10, overflow="sample", isolation="process")
engine = EventEngine(EventsConfig(p3=lane))
engine.on("LOG_WRITE", isolated.note_line)
engine.start()
"""


def test_a_program_without_a_main_guard_fails_with_a_hint(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )
    assert done.returncode == 1
    assert 'under `if __name__ == "__main__"`' in done.stderr.splitlines()[-1]
