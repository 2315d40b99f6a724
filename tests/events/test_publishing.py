"""Creating events, and publishing them one by one and as lists."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qts.domain import EventRefusedError, LaneFullError, ManualClock
from qts.events import Catalogue, Event, EventEngine, EventsConfig, EventType, LaneConfig, Priority
from qts.events import payloads as p
from tests.events.conftest import MakeEngine, check_conservation
from tests.events.samples import (
    TIMEOUT_S,
    evaluate,
    fill,
    lanes,
    log_line,
    signal,
    step_all,
    tick,
)

_PART = 128  # events that go into a lane under one lock


def audited() -> EventEngine:
    small = LaneConfig(queue_size=7, overflow="drop_oldest", batch_size=3)
    return EventEngine(
        EventsConfig(
            p1=small,
            p2=LaneConfig(queue_size=1000, overflow="collapse", batch_size=3),
            p3=LaneConfig(queue_size=5, overflow="sample", sample_rate=0.5),
            audit_records=100_000,
        )
    )


@settings(max_examples=150)
@given(
    st.lists(
        st.one_of(
            st.lists(st.tuples(st.integers(1, 3), st.sampled_from("abcde")), max_size=40),
            st.integers(1, 3),  # a step of this lane
        ),
        max_size=12,
    )
)
def test_a_list_has_the_same_outcome_as_its_events_one_by_one(
    actions: list[list[tuple[int, str]] | int],
) -> None:
    many, single = audited(), audited()
    make: dict[int, Callable[[EventEngine, str], Event]] = {1: tick, 2: evaluate, 3: log_line}
    for action in actions:
        if isinstance(action, int):
            assert many.lanes.step(action) == single.lanes.step(action)
            continue
        events = [make[lane](many, key) for lane, key in action]
        assert many.publish_many(events) == len(events)
        for event in events:
            single.publish(event)
    fields = ["sequence", "other", "key", "type", "lane", "action", "flags"]
    assert many.audit()[fields].tolist() == single.audit()[fields].tolist()
    for engine in (many, single):
        check_conservation(engine)
        engine.stop()


def test_a_list_longer_than_a_part_keeps_its_order_through_all_lanes(engine: EventEngine) -> None:
    seen: list[list[str]] = [[], [], [], []]
    for lane in Priority:
        engine.on(lane, lambda event: seen[event.priority].append(event.event_id))
    makers: tuple[Callable[[EventEngine], Event], ...] = (tick, signal, log_line)
    events = [makers[number % 3](engine) for number in range(5 * _PART + 7)]
    assert engine.publish_many(tuple(events)) == len(events)
    step_all(engine)
    for number in (1, 2, 3):
        assert seen[number] == [event.event_id for event in events if event.priority == number]


@pytest.mark.parametrize("place", [0, 1, _PART - 1, _PART, _PART + 1, 3 * _PART])
def test_events_before_a_refused_event_are_published_and_none_after(
    engine: EventEngine, place: int
) -> None:
    bad = msgspec.structs.replace(tick(engine), timestamp=float("nan"))
    before = [tick(engine, f"{number:06}") for number in range(place)]
    after = [tick(engine, "after")]
    counts = [sys.getrefcount(event) for event in (*before, bad, *after)]
    with pytest.raises(EventRefusedError, match="timestamp nan"):
        engine.publish_many([*before, bad, *after])
    lane = engine.status().lanes["P1"]
    assert (lane.published, lane.waiting) == (place, place)
    assert step_all(engine) == place
    assert [sys.getrefcount(event) for event in (*before, bad, *after)] == counts


def test_a_full_lane_takes_what_fits_of_a_list_and_refuses_in_time(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(lanes(p1=LaneConfig(queue_size=200, overflow="block")))
    events = [tick(engine) for _ in range(300)]
    with pytest.raises(LaneFullError, match="lane P1 is full"):
        engine.publish_many(events, timeout=0.01)
    assert engine.status().lanes["P1"].published == 200
    assert step_all(engine) == 200


def test_a_long_list_yields_the_gil_on_its_way(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(lanes(p1=LaneConfig(queue_size=1_000_000, overflow="block")))
    ticks = [tick(engine)] * 200_000
    between = threading.Event()

    def on_fill(_event: Event) -> None:
        if engine.status().lanes["P1"].published % len(ticks):  # the list is not finished
            between.set()

    engine.on("FILL_CONFIRMED", on_fill)
    engine.on("PRICE_TICK", lambda _event: None)
    end = time.monotonic() + TIMEOUT_S
    with engine:
        while not between.is_set() and time.monotonic() < end:
            go = threading.Event()
            sender = threading.Thread(
                target=lambda go=go: go.wait(TIMEOUT_S) and engine.publish(fill(engine))
            )
            sender.start()
            go.set()
            engine.publish_many(ticks)
            sender.join()
            assert engine.wait_drained(TIMEOUT_S)
    assert between.is_set()


def test_a_type_is_compared_by_value_not_by_identity(engine: EventEngine) -> None:
    for _ in range(200):
        copied = "".join(["PRICE", "_", "TICK"])
        engine.publish(msgspec.structs.replace(tick(engine), event_type=copied))
    assert engine.status().lanes["P1"].published == 200
    with pytest.raises(EventRefusedError, match="did you mean PRICE_TICK"):
        engine.publish(msgspec.structs.replace(tick(engine), event_type="PRICE_TICKS"))


def test_publish_takes_its_arguments_by_name_and_refuses_others(engine: EventEngine) -> None:
    publish = engine.publish
    publish(event=tick(engine), timeout=0.5)
    publish(tick(engine), timeout=None)
    assert engine.publish_many(events=[tick(engine)]) == 1
    for wrong in ({"events": 1}, {"event": tick(engine), "wait": 1}, {}):
        with pytest.raises(TypeError, match=r"expected \(event, timeout=None\)"):
            publish(**wrong)
    with pytest.raises(TypeError):
        publish(tick(engine), "soon")
    with pytest.raises(TypeError):
        engine.publish_many(7)


def test_ids_are_uuids_of_version_7_that_rise_and_never_repeat(engine: EventEngine) -> None:
    ids = [tick(engine).event_id for _ in range(2000)]
    assert len(set(ids)) == len(ids)
    assert {uuid.UUID(each).version for each in ids} == {7}
    assert all(str(uuid.UUID(each)) == each for each in ids)
    milliseconds = [uuid.UUID(each).int >> 80 for each in ids]
    assert milliseconds == sorted(milliseconds)


def test_an_event_has_the_time_of_the_engines_clock() -> None:
    start = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
    engine = EventEngine(clock=ManualClock(start))
    event = engine.new_event("PRICE_TICK", p.PriceTick(symbol="a", price=1.0), "here")
    assert (event.timestamp, event.source) == (start.timestamp(), "here")
    before = time.time()
    assert before <= tick(EventEngine()).timestamp <= time.time()


def test_a_new_event_has_the_fields_of_its_catalogue_entry(engine: EventEngine) -> None:
    for entry in engine.catalogue:
        event = engine.new_event(entry.name, p.Payload(), "x")
        expected = entry.event(
            event.payload, event_id=event.event_id, timestamp=event.timestamp, source="x"
        )
        assert event == expected


def test_a_type_registered_after_the_engine_is_refused() -> None:
    catalogue = Catalogue()
    engine = EventEngine(catalogue=catalogue)
    catalogue.register(EventType("SPREAD", Priority.P1, p.PriceTick))
    with pytest.raises(
        EventRefusedError, match="SPREAD was registered after the engine was created"
    ):
        engine.new_event("SPREAD", p.PriceTick(symbol="a", price=1.0))
    with pytest.raises(EventRefusedError, match="unknown event type 'SPREADS'"):
        engine.new_event("SPREADS", p.PriceTick(symbol="a", price=1.0))
