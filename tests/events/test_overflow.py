"""Overflow policy of each lane, in exact counts."""

from __future__ import annotations

import asyncio
import math
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qts.events import (
    AUDIT_ACTIONS,
    AUDIT_DTYPE,
    Event,
    EventEngine,
    EventsConfig,
    LaneConfig,
    Priority,
    replay_audit,
)
from tests.events.conftest import MakeEngine, check_conservation
from tests.events.samples import (
    TIMEOUT_S,
    evaluate,
    fill,
    log_line,
    order_ids,
    signal,
    step_all,
    tick,
)


def test_block_loses_nothing_under_eight_publishers(engine: EventEngine) -> None:
    seen: list[Event] = []
    engine.on("FILL_CONFIRMED", seen.append)
    each = 500

    def publish(publisher: int) -> None:
        for number in range(each):
            engine.publish(fill(engine, publisher * each + number))

    with engine:
        threads = [threading.Thread(target=publish, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert engine.wait_drained(TIMEOUT_S)
    numbers = [int(order[3:]) for order in order_ids(seen)]
    assert sorted(numbers) == list(range(8 * each))
    for publisher in range(8):  # and in the order of each publisher
        mine = [n for n in numbers if n // each == publisher]
        assert mine == sorted(mine)


def test_a_full_p0_blocks_the_publisher_until_there_is_capacity(engine: EventEngine) -> None:
    for number in range(100):
        engine.publish(fill(engine, number))
    entered = threading.Event()

    def publish() -> None:
        engine.publish(fill(engine, 100))
        entered.set()

    thread = threading.Thread(target=publish)
    thread.start()
    assert not entered.wait(0.05)
    assert engine.lanes.step(0) == 1  # takes a batch out of the lane
    assert entered.wait(TIMEOUT_S)
    thread.join()
    assert step_all(engine) == 100
    assert engine.status().lanes["P0"].blocked == 1


async def test_an_async_publisher_waits_without_blocking_its_loop(engine: EventEngine) -> None:
    for number in range(100):
        engine.publish(fill(engine, number))
    publishing = asyncio.create_task(engine.publish_async(fill(engine, 100)))
    for _ in range(20):  # the loop keeps running
        await asyncio.sleep(0.001)
    assert not publishing.done()
    step_all(engine)
    await asyncio.wait_for(publishing, TIMEOUT_S)
    assert step_all(engine) == 1


def test_drop_oldest_keeps_the_newest_tick_of_every_symbol(make_engine: MakeEngine) -> None:
    engine = make_engine()
    last: dict[str, float] = {}
    engine.on(
        "PRICE_TICK", lambda event: last.__setitem__(event.payload.symbol, event.payload.price)
    )
    symbols = [f"{number:06}" for number in range(2500)]
    rounds = 24  # 60,000 ticks into a lane of 10,000
    for turn in range(rounds):
        engine.publish_many([tick(engine, symbol, turn + 1.0) for symbol in symbols])
    assert step_all(engine) == 10_000
    assert last == dict.fromkeys(symbols, float(rounds))
    lane = engine.status().lanes["P1"]
    assert (lane.dropped, lane.collapsed) == (0, rounds * 2500 - 10_000)


def test_drop_oldest_drops_the_oldest_when_every_event_is_the_only_one_of_its_symbol(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(EventsConfig(p1=LaneConfig(queue_size=3, overflow="drop_oldest")))
    seen: list[str] = []
    engine.on("PRICE_TICK", lambda event: seen.append(event.payload.symbol))
    engine.publish_many([tick(engine, symbol) for symbol in "abcde"])
    step_all(engine)
    assert seen == ["c", "d", "e"]
    assert engine.status().lanes["P1"].dropped == 2
    assert engine.dropped() == {"PRICE_TICK": {"a": 1, "b": 1}}


def test_collapse_merges_in_place_and_never_across_keys(engine: EventEngine) -> None:
    seen: list[tuple[str, str]] = []
    engine.on(
        "STRATEGY_EVALUATE",
        lambda event: seen.append((event.payload.strategy_type, event.payload.calc_data_version)),
    )
    for strategy, version in [("A", "1"), ("B", "1"), ("A", "2"), ("C", "1"), ("A", "3")]:
        engine.publish(evaluate(engine, strategy, version))
    step_all(engine)
    assert seen == [("A", "3"), ("B", "1"), ("C", "1")]
    assert engine.status().lanes["P2"].collapsed == 2


def test_signals_are_never_collapsed(engine: EventEngine) -> None:
    seen: list[Event] = []
    engine.on("SIGNAL_GENERATED", seen.append)
    for strength in range(5):
        engine.publish(signal(engine, "005930", float(strength)))
    step_all(engine)
    assert [event.payload.strength for event in seen] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("rate", "one_of"), [(0.1, 10), (0.25, 4), (1.0, 1)])
def test_sample_keeps_exactly_one_of_n(make_engine: MakeEngine, rate: float, one_of: int) -> None:
    config = EventsConfig(p3=LaneConfig(queue_size=100, overflow="sample", sample_rate=rate))
    engine = make_engine(config)
    engine.publish_many([log_line(engine) for _ in range(100 + 20 * one_of)])
    lane = engine.status().lanes["P3"]
    assert (lane.waiting, lane.dropped) == (100, 20)
    assert lane.sampled == 20 * one_of - 20


@given(percent=st.integers(1, 100), count=st.integers(1, 1000))
@settings(max_examples=40)
def test_sample_keeps_any_rate_by_counting(percent: int, count: int) -> None:
    lane_config = LaneConfig(queue_size=10, overflow="sample", sample_rate=percent / 100)
    engine = EventEngine(EventsConfig(p3=lane_config))
    engine.publish_many([log_line(engine)] * 10)
    engine.publish_many([log_line(engine)] * count)
    lane = engine.status().lanes["P3"]
    assert lane.dropped == math.ceil(count * percent / 100)  # each one kept drops the oldest
    assert lane.sampled == count - lane.dropped


def test_nothing_is_sampled_while_there_is_capacity(engine: EventEngine) -> None:
    engine.publish_many([log_line(engine) for _ in range(50_000)])
    assert engine.status().lanes["P3"].sampled == 0


def test_a_handler_may_publish_into_its_own_full_lane(make_engine: MakeEngine) -> None:
    """Events published by a handler may exceed the bound; waiting would deadlock."""
    engine = make_engine(EventsConfig(p0=LaneConfig(queue_size=2, overflow="block")))
    seen: list[str] = []

    def republish(event: Event) -> None:
        seen.append(event.payload.order_id)
        if event.payload.order_id == "ORD0":
            for number in range(1, 11):
                engine.publish(fill(engine, number))

    engine.on("FILL_CONFIRMED", republish)
    with engine:
        engine.publish(fill(engine, 0))
        assert engine.wait_drained(TIMEOUT_S)
    assert seen == [f"ORD{number}" for number in range(11)]
    assert engine.status().lanes["P0"].over == 8


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from("PTELX"), st.sampled_from("abcdefgh")), min_size=1, max_size=150
    )
)
def test_replay_reproduces_every_drop_and_collapse(actions: list[tuple[str, str]]) -> None:
    config = EventsConfig(
        p1=LaneConfig(queue_size=4, overflow="drop_oldest", batch_size=2),
        p2=LaneConfig(queue_size=4, overflow="collapse", batch_size=1),
        p3=LaneConfig(queue_size=4, overflow="sample", sample_rate=0.5),
        audit_records=100_000,
    )
    engine = EventEngine(config)
    for action, key in actions:
        if action == "X":
            engine.lanes.step(ord(key) % 4)
        elif action == "P":
            engine.publish(tick(engine, key))
        elif action in "TE":
            engine.try_publish(evaluate(engine, key))
        else:
            engine.publish(log_line(engine, key))
    recorded = engine.audit()
    replayed = replay_audit(config, recorded)
    decided = ["published", "taken", "collapsed", "dropped", "sampled"]
    expected = recorded[
        np.isin(recorded["action"], [AUDIT_ACTIONS.index(each) for each in decided])
    ]
    assert replayed.dtype == AUDIT_DTYPE
    for field in ("sequence", "other", "key", "lane", "action"):
        assert (replayed[field] == expected[field]).all()
    check_conservation(engine)


def test_the_audit_records_the_outcome_of_each_event(make_engine: MakeEngine) -> None:
    engine = make_engine(
        EventsConfig(p2=LaneConfig(queue_size=5, overflow="collapse"), audit_records=100)
    )
    engine.publish(evaluate(engine, "A"))
    engine.publish(evaluate(engine, "A"))
    step_all(engine)
    records = [
        (AUDIT_ACTIONS[row["action"]], int(row["sequence"]), int(row["other"]))
        for row in engine.audit()
    ]
    assert records == [
        ("published", 1, 0),
        ("published", 2, 0),
        ("collapsed", 1, 2),
        ("taken", 2, 0),
        ("handled", 2, 0),
    ]


def test_pausing_p0_is_refused(engine: EventEngine) -> None:
    with pytest.raises(Exception, match="cannot be paused"):
        engine.pause(Priority.P0)


def test_a_million_ticks_keep_the_newest_of_each_of_2500_symbols(make_engine: MakeEngine) -> None:
    """At full size, while the lane's threads handle what they can."""
    engine = make_engine()
    last: dict[str, float] = {}

    def newest(event: Event) -> None:  # two workers: a tick may overlap the next of its symbol
        payload = event.payload
        last[payload.symbol] = max(payload.price, last.get(payload.symbol, 0.0))

    engine.on("PRICE_TICK", newest)
    symbols = [f"{number:06}" for number in range(2500)]
    rounds = 400
    with engine:
        for turn in range(rounds):
            engine.publish_many([tick(engine, symbol, turn + 1.0) for symbol in symbols])
        assert engine.wait_drained(TIMEOUT_S)
    assert last == dict.fromkeys(symbols, float(rounds))
    lane = engine.status().lanes["P1"]
    assert lane.published == rounds * len(symbols) == 1_000_000
    assert lane.handled + lane.collapsed + lane.dropped == lane.published


@pytest.mark.parametrize("overflow", ["block", "collapse"])
def test_a_p2_handler_may_publish_into_its_own_full_lane(
    make_engine: MakeEngine, overflow: str
) -> None:
    lane = LaneConfig(queue_size=2, overflow=overflow, batch_size=1)  # type: ignore[arg-type]
    engine = make_engine(EventsConfig(p2=lane))
    seen: list[str] = []

    def republish(event: Event) -> None:
        seen.append(event.payload.symbol)
        if event.payload.symbol == "first":
            engine.publish_many([signal(engine, f"s{number}") for number in range(30)])

    engine.on("SIGNAL_GENERATED", republish)
    with engine:
        engine.publish(signal(engine, "first"))
        assert engine.wait_drained(TIMEOUT_S)
    assert sorted(seen) == sorted(["first", *(f"s{number}" for number in range(30))])
    assert engine.status().lanes["P2"].over > 0
