"""Async handlers: their events wait in the lane, and none is lost when a handler is cancelled."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from qts.domain import LaneFullError, OperationError
from qts.events import Event, EventEngine, EventsConfig, LaneConfig, Priority, batch
from qts.events.payloads import OrderUpdatePayload
from tests.events.conftest import MakeEngine, codes_into
from tests.events.samples import (
    TIMEOUT_S,
    evaluate,
    fill,
    log_line,
    order_ids,
    signal,
    tick,
)


class Gate:
    """Async handler that waits until it is opened, from any thread."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()
        self.seen: list[Event] = []

    async def __call__(self, event: Event) -> None:
        self.entered.set()
        assert await asyncio.to_thread(self.open.wait, TIMEOUT_S)
        self.seen.append(event)


@pytest.fixture
def gate() -> Gate:
    return Gate()


def test_p0_blocks_when_its_async_handler_is_behind(engine: EventEngine, gate: Gate) -> None:
    engine.on("FILL_CONFIRMED", gate)
    published = 0
    with engine:
        try:
            while published < 1000:
                engine.publish(fill(engine, published), 2.0)
                published += 1
        except LaneFullError:
            pass
        lane = engine.status().lanes["P0"]
        assert lane.depth == 100
        assert 100 < published <= 116
        engine.check()
        assert engine.status().lanes["P0"].pressure == "CRITICAL"
        gate.open.set()
        assert engine.wait_drained(TIMEOUT_S)
    assert order_ids(gate.seen) == [f"ORD{number}" for number in range(published)]


def test_other_types_pass_events_that_wait_for_an_async_handler(
    engine: EventEngine, gate: Gate
) -> None:
    engine.on("FILL_CONFIRMED", gate)
    rejected: list[Event] = []
    engine.on("ORDER_REJECTED", rejected.append)
    ticks: list[Event] = []
    engine.on("PRICE_TICK", ticks.append)
    with engine:
        for number in range(50):
            engine.publish(fill(engine, number))
        assert gate.entered.wait(TIMEOUT_S)
        order = OrderUpdatePayload(order_id="1", symbol="005930")
        engine.publish_for_ack(engine.new_event("ORDER_REJECTED", order)).result(TIMEOUT_S)
        engine.publish(tick(engine))  # P0's backlog does not hold lower lanes back
        assert engine.wait_drained(TIMEOUT_S, Priority.P1)
        assert (len(rejected), len(ticks)) == (1, 1)
        gate.open.set()
        assert engine.wait_drained(TIMEOUT_S)
    assert order_ids(gate.seen) == [f"ORD{number}" for number in range(50)]


def test_drop_oldest_applies_to_what_waits_for_an_async_handler(
    make_engine: MakeEngine, gate: Gate
) -> None:
    config = EventsConfig(p1=LaneConfig(queue_size=100, overflow="drop_oldest"))
    engine = make_engine(config)
    engine.on("PRICE_TICK", gate)
    with engine:
        for number in range(1000):
            engine.publish(tick(engine, f"{number}"))
        lane = engine.status().lanes["P1"]
        # Up to 16 are in flight: taken before the lane was full, or from the full lane.
        assert 84 <= lane.depth <= 100
        assert lane.waiting <= 116
        assert lane.dropped == 1000 - lane.waiting
        gate.open.set()
        assert engine.wait_drained(TIMEOUT_S)
    newest = [event.payload.symbol for event in gate.seen][-lane.depth :]
    assert newest == [str(number) for number in range(1000 - lane.depth, 1000)]


def test_collapse_applies_to_what_waits_for_an_async_handler(
    engine: EventEngine, gate: Gate
) -> None:
    engine.on("STRATEGY_EVALUATE", gate)
    with engine:
        engine.publish_many([evaluate(engine, f"S{number}") for number in range(40)])
        assert gate.entered.wait(TIMEOUT_S)
        engine.publish_many([evaluate(engine, f"S{number}", "new") for number in range(20, 40)])
        assert engine.status().lanes["P2"].collapsed == 20
        gate.open.set()
        assert engine.wait_drained(TIMEOUT_S)
    versions = {each.payload.strategy_type: each.payload.calc_data_version for each in gate.seen}
    assert [versions[f"S{number}"] for number in range(40)] == [""] * 20 + ["new"] * 20


MEMORY = """
import asyncio
from qts.events import EventEngine, Priority
from tests.events.samples import log_line

def rss_mb():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6

async def slow(event):
    await asyncio.sleep(0.05)

engine = EventEngine()
engine.on("LOG_WRITE", slow)
with engine:
    for _ in range(100):
        engine.publish(log_line(engine))
    before = rss_mb()
    for _ in range(200_000):
        engine.publish(log_line(engine))
    grown = rss_mb() - before
    lane = engine.status().lanes["P3"]
    print(grown < 30, lane.depth == lane.capacity, lane.sampled > 100_000, lane.balanced, grown)
"""


def test_200_000_events_for_an_async_handler_stay_within_30_mb() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", MEMORY],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert ended.stdout.split()[:4] == ["True"] * 4, ended.stdout + ended.stderr


def test_a_cancelled_task_in_an_async_handler_makes_a_dead_letter(make_engine: MakeEngine) -> None:
    codes: list[str] = []
    engine = make_engine(on_alert=codes_into(codes))
    tries: list[int] = []

    async def cancels_what_it_awaits(event: Event) -> None:
        tries.append(event.retry_count)
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task

    engine.on("FILL_CONFIRMED", cancels_what_it_awaits)
    with engine:
        future = engine.publish_for_ack(fill(engine))
        with pytest.raises(OperationError, match="became a dead letter"):
            future.result(TIMEOUT_S)
        assert engine.wait_drained(TIMEOUT_S)
    assert tries == [0, 1, 2, 3]
    (letter,) = engine.dead_letters.list()
    assert letter.error.startswith("CancelledError")
    assert codes == ["FS098"]


@pytest.mark.parametrize("how", ["own task", "every task", "sys.exit", "sys.exit in a task"])
def test_no_way_to_end_a_task_stops_an_async_handler(engine: EventEngine, how: str) -> None:
    seen: list[str] = []

    async def leave() -> None:
        sys.exit(3)

    async def handler(event: Event) -> None:
        message = event.payload.message
        if message == "bad":
            if how == "own task":
                task = asyncio.current_task()
                assert task
                task.cancel()
                await asyncio.sleep(0)
            elif how == "every task":
                for each in asyncio.all_tasks():
                    each.cancel()
                await asyncio.sleep(0)
            elif how == "sys.exit":
                sys.exit(3)
            else:
                await asyncio.create_task(leave())
        seen.append(message)

    engine.on("LOG_WRITE", handler)
    with engine:
        engine.publish_many([log_line(engine, word) for word in ("a", "bad", "b", "bad", "c")])
        assert engine.wait_drained(TIMEOUT_S)
    assert seen == ["a", "b", "c"]
    assert engine.status().lanes["P3"].dead == engine.dead_letters.count == 2


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
@pytest.mark.parametrize("lane", ["P0", "P1", "batch"])
def test_an_exit_in_a_handler_makes_a_dead_letter(
    make_engine: MakeEngine, error: BaseException, lane: str
) -> None:
    codes: list[str] = []
    engine = make_engine(on_alert=codes_into(codes))

    def leave(_event: object) -> None:
        raise error

    engine.on(
        "FILL_CONFIRMED" if lane == "P0" else "PRICE_TICK",
        batch(leave) if lane == "batch" else leave,
    )
    with engine:
        engine.publish(fill(engine) if lane == "P0" else tick(engine))
        assert engine.wait_drained(TIMEOUT_S)
    (letter,) = engine.dead_letters.list()
    assert letter.error.startswith(type(error).__name__)
    assert codes == (["FS098"] if lane == "P0" else [])


def test_a_batch_handler_beside_an_async_one_is_called(engine: EventEngine) -> None:
    seen: list[str] = []

    async def one(_event: Event) -> None:
        seen.append("async")

    engine.on("SIGNAL_GENERATED", one)
    engine.on("SIGNAL_GENERATED", batch(lambda events: seen.extend(["batch"] * len(events))))
    with engine:
        engine.publish_many([signal(engine) for _ in range(3)])
        assert engine.wait_drained(TIMEOUT_S)
    assert sorted(seen) == ["async"] * 3 + ["batch"] * 3
