"""Handlers that receive a batch as rows of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qts.domain import EventRefusedError
from qts.events import EVENT_DTYPE, EventEngine, EventsConfig, LaneConfig, batch, rows
from qts.events import payloads as p
from qts.events.handlers import RowBatchAdapter
from tests.events.conftest import MakeEngine
from tests.events.samples import TIMEOUT_S, tick

Array = npt.NDArray[np.void]


@pytest.fixture
def engine(make_engine: MakeEngine) -> EventEngine:
    return make_engine(EventsConfig(p1=LaneConfig(queue_size=1000, overflow="drop_oldest")))


def test_a_batch_comes_as_rows_with_its_symbols(engine: EventEngine) -> None:
    got: list[tuple[Array, list[str]]] = []
    engine.on("PRICE_TICK", rows(lambda array, symbols: got.append((array, list(symbols)))))
    events = [tick(engine, f"s{number}", float(number + 1)) for number in range(5)]
    engine.publish_many(events)
    assert engine.lanes.step(1) == 5
    ((array, symbols),) = got
    assert array.dtype == EVENT_DTYPE
    assert symbols == [f"s{number}" for number in range(5)]
    assert array["values"][:, 0].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert array["timestamp"].tolist() == [event.timestamp for event in events]
    assert array["sequence"].tolist() == [1, 2, 3, 4, 5]
    assert not array.flags.writeable


def test_rows_of_the_lanes_and_converted_rows_are_equal(engine: EventEngine) -> None:
    fast: list[Array] = []
    events = [tick(engine, symbol, 2.5) for symbol in ("a", "005930", "한")]
    engine.on("PRICE_TICK", rows(lambda array, _: fast.append(array)))
    engine.publish_many(events)
    engine.lanes.step(1)
    slow: list[Array] = []
    numbers = {each.name: (n, each.key) for n, each in enumerate(engine.catalogue)}
    RowBatchAdapter(lambda array, _: slow.append(array), numbers)(events)
    for field in ("key", "timestamp", "type", "count", "values"):
        assert (slow[0][field] == fast[0][field]).all(), field


def test_events_published_before_registration_come_as_rows(
    engine: EventEngine,
) -> None:
    got: list[float] = []
    engine.publish(tick(engine, "early", 7.0))
    engine.on("PRICE_TICK", rows(lambda array, _: got.extend(array["values"][:, 0])))
    while not got:
        engine.lanes.step(1)
    assert got == [7.0]


def test_only_the_poisoned_events_of_a_failing_array_die(engine: EventEngine) -> None:
    done: set[str] = set()

    def handle(array: Array, symbols: Sequence[str]) -> None:
        if (array["values"][:, 0] < 0).any():
            raise ValueError("cannot read this")
        done.update(symbols)

    engine.on("PRICE_TICK", rows(handle))
    engine.publish_many([tick(engine, "a", 1.0), tick(engine, "b", -1.0), tick(engine, "c", 1.0)])
    with engine:
        assert engine.wait_drained(TIMEOUT_S)
    assert done == {"a", "c"}
    lane = engine.status().lanes["P1"]
    assert (lane.handled, lane.dead) == (2, 1)


def test_rows_and_lists_and_plain_handlers_share_a_type(engine: EventEngine) -> None:
    seen: list[str] = []
    engine.on("PRICE_TICK", rows(lambda array, _: seen.append(f"rows {len(array)}")))
    engine.on("PRICE_TICK", batch(lambda events: seen.append(f"list {len(events)}")))
    engine.on("PRICE_TICK", lambda _: seen.append("plain"))
    engine.publish_many([tick(engine, "a"), tick(engine, "b")])
    engine.lanes.step(1)
    assert seen == ["rows 2", "list 2", "plain", "plain"]


@pytest.mark.parametrize(
    ("event_type", "message"),
    [("FILL_CONFIRMED", "cannot be batched"), ("ORDERBOOK_UPDATE", "nested fields")],
)
def test_types_without_rows_are_refused(engine: EventEngine, event_type: str, message: str) -> None:
    def handle(_array: Array, _symbols: Sequence[str]) -> None: ...

    with pytest.raises(EventRefusedError, match=message):
        engine.on(event_type, rows(handle))
    engine.on("PRICE_TICK", rows(handle))
    with pytest.raises(EventRefusedError, match="already registered for PRICE_TICK"):
        engine.on("PRICE_TICK", rows(handle))


def test_a_type_without_a_key_has_empty_keys(engine: EventEngine) -> None:
    got: list[Any] = []
    engine.on("VIX_UPDATE", rows(lambda array, keys: got.append((len(array), list(keys)))))
    engine.emit("VIX_UPDATE", p.VixUpdate(value=20.0))
    while not got:
        engine.lanes.step(1)
    assert got == [(1, [""])]
