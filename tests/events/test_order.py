"""Strict priority, preemption at event boundaries and batches, without threads."""

from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from qts.events import Event, EventEngine, EventsConfig, LaneConfig, Priority, batch
from tests.events.conftest import MakeEngine, check_conservation
from tests.events.samples import evaluate, fill, log_line, signal, step_all, tick


def test_p0_overtakes_everything_that_waits(engine: EventEngine) -> None:
    seen: list[int] = []
    for lane in Priority:
        engine.on(lane, lambda event: seen.append(event.priority))
    for make in (log_line, signal, tick, fill):
        engine.publish(make(engine))
    assert engine.lanes.step(3) == -1  # refused: higher lanes come first
    step_all(engine)
    assert seen == [0, 1, 2, 3]


def test_a_p2_batch_interrupted_by_p0_resumes_at_its_place(engine: EventEngine) -> None:
    seen: list[str] = []
    engine.on("SIGNAL_GENERATED", lambda event: seen.append(event.payload.symbol))
    engine.on("FILL_CONFIRMED", lambda event: seen.append(event.payload.order_id))
    for symbol in "abcd":
        engine.publish(signal(engine, symbol))
    assert engine.lanes.step(2) == 1
    engine.publish(fill(engine, 1))
    assert engine.lanes.step(2) == -1
    assert engine.lanes.step(0) == 1
    step_all(engine)
    assert seen == ["a", "ORD1", "b", "c", "d"]


@settings(max_examples=200)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("publish"), st.integers(0, 3)),
            st.tuples(st.just("step"), st.integers(0, 3)),
        ),
        max_size=120,
    ),
    st.integers(1, 5),
)
def test_nothing_is_handled_twice_or_skipped(actions: list[tuple[str, int]], taken: int) -> None:
    lane = LaneConfig(queue_size=1000, overflow="block", batch_size=taken)
    engine = EventEngine(EventsConfig(p0=lane, p1=lane, p2=lane, p3=lane))
    published: list[list[str]] = [[], [], [], []]
    seen: list[list[str]] = [[], [], [], []]
    waiting = [0, 0, 0, 0]
    for each in Priority:
        engine.on(each, lambda event: seen[event.priority].append(event.event_id))
    makers = (fill, tick, signal, log_line)
    for action, number in actions:
        if action == "publish":
            event = makers[number](engine)
            published[number].append(event.event_id)
            engine.publish(event)
            waiting[number] += 1
        else:
            above = any(waiting[:number])
            result = engine.lanes.step(number)
            assert result == (-1 if above else min(waiting[number], 1))
            waiting[number] -= max(result, 0)
    for number in range(4):
        assert seen[number] == published[number][: len(seen[number])]
    step_all(engine)
    assert seen == published
    check_conservation(engine)


def test_handlers_are_called_in_the_order_of_registration(engine: EventEngine) -> None:
    seen: list[str] = []
    engine.on("PRICE_*", lambda _: seen.append("pattern"))
    engine.on(Priority.P1, lambda _: seen.append("lane"))
    engine.on("PRICE_TICK", lambda _: seen.append("type"))
    engine.publish(tick(engine))
    step_all(engine)
    assert seen == ["pattern", "lane", "type"]


def test_a_batch_holds_one_type_in_p1(make_engine: MakeEngine) -> None:
    engine = make_engine(EventsConfig(p1=LaneConfig(queue_size=100, overflow="drop_oldest")))
    batches: list[list[float]] = []
    engine.on("PRICE_TICK", batch(lambda events: batches.append([e.payload.price for e in events])))
    for number in range(250):
        if number < 100:
            engine.publish(tick(engine, f"s{number}", float(number + 1)))
    step_all(engine)
    assert batches == [[float(number + 1) for number in range(100)]]


def test_a_batch_holds_one_symbol_in_p2(engine: EventEngine) -> None:
    batches: list[list[tuple[str, float]]] = []
    engine.on(
        "SIGNAL_GENERATED",
        batch(
            lambda events: batches.append([(e.payload.symbol, e.payload.strength) for e in events])
        ),
    )
    for number in range(50):
        engine.publish(signal(engine, "ab"[number % 2], float(number)))
    step_all(engine)
    assert batches == [
        [("a", float(number)) for number in range(0, 50, 2)],
        [("b", float(number)) for number in range(1, 50, 2)],
    ]


def test_a_batch_waits_to_fill_until_its_window_ends(make_engine: MakeEngine) -> None:
    window_ms = 50.0
    config = EventsConfig(
        p1=LaneConfig(queue_size=100, overflow="drop_oldest", batch_window_ms=window_ms)
    )
    engine = make_engine(config)
    batches: list[int] = []
    engine.on("PRICE_TICK", batch(lambda events: batches.append(len(events))))
    began = time.monotonic()
    engine.publish(tick(engine))
    while engine.lanes.step(1) == 0:
        assert time.monotonic() - began < 20
    assert time.monotonic() - began >= window_ms / 1000
    assert batches == [1]


def test_a_full_batch_does_not_wait(make_engine: MakeEngine) -> None:
    lane = LaneConfig(queue_size=100, overflow="drop_oldest", batch_size=10, batch_window_ms=60_000)
    engine = make_engine(EventsConfig(p1=lane))
    sizes: list[int] = []
    engine.on("PRICE_TICK", batch(lambda events: sizes.append(len(events))))
    engine.publish_many([tick(engine, str(number)) for number in range(15)])
    assert engine.lanes.step(1) == 10
    assert engine.lanes.step(1) == 0  # five are not a full batch
    assert sizes == [10]


def test_a_window_never_delays_a_plain_handler(make_engine: MakeEngine) -> None:
    lane = LaneConfig(queue_size=100, overflow="collapse", batch_window_ms=60_000)
    engine = make_engine(EventsConfig(p2=lane))
    seen: list[Event] = []
    engine.on("SIGNAL_GENERATED", batch(lambda events: seen.extend(events)))
    engine.on("STRATEGY_EVALUATE", seen.append)
    engine.publish(signal(engine))
    assert engine.lanes.step(2) == 0
    engine.publish(evaluate(engine))
    assert step_all(engine) == 2
    assert [event.event_type for event in seen] == ["SIGNAL_GENERATED", "STRATEGY_EVALUATE"]


def test_a_paused_lane_waits_and_resumes(engine: EventEngine) -> None:
    engine.publish(tick(engine))
    engine.pause(Priority.P1)
    assert engine.lanes.step(1) == 0
    engine.resume(Priority.P1)
    assert engine.lanes.step(1) == 1
