"""Stops on an engine: what a tick decides is in lane P0 before its publish returns."""

from __future__ import annotations

import gc
import sys
import weakref
from decimal import Decimal
from types import FrameType
from typing import Any

import pytest

from qts.domain import ExitLevels, LaneFullError, SystemClock
from qts.events import Catalogue, Event, EventEngine, EventsConfig, LaneConfig
from qts.events import payloads as p
from qts.risk import (
    EMERGENCY_ORDER,
    EmergencyOrder,
    MicroRiskLoop,
    PositionShadow,
    StopsConfig,
    ageless,
)


class Desk:
    """An engine whose ticks the stops look at; nothing takes from its lanes."""

    def __init__(self, config: EventsConfig | None = None) -> None:
        catalogue = Catalogue()
        catalogue.register(EMERGENCY_ORDER)
        self.engine = EventEngine(config, catalogue)
        self.seen: list[Event] = []
        self.fired: list[tuple[str, Any]] = []  # what took the way through Python
        for name in ("EMERGENCY_ORDER", "TRAILING_STOP_HIT"):
            self.engine.on(name, self.seen.append)
        self.loop = MicroRiskLoop(
            StopsConfig(trail_min_distance=0),
            lambda name, payload: self.fired.append((name, payload)),
            lambda _code, _text: None,
            SystemClock(),
            ageless,
        )
        self.engine.attach_watcher("PRICE_TICK", self.loop.stops, "price")

    def hold(self, quantity: float = 10, stop: float = 0.0) -> None:
        held = PositionShadow(
            symbol="A",
            quantity=quantity,
            average=10_000,
            exits=ExitLevels(stop=Decimal(stop)) if stop else None,
        )
        self.loop.set_positions([held], 1e9)

    def tick(self, price: float) -> Event:
        return self.engine.new_event("PRICE_TICK", p.PriceTick(symbol="A", price=price, volume=1.0))

    @property
    def exits(self) -> list[Event]:
        """Those in lane P0, taken out of it."""
        while self.engine.lanes.step(0) > 0:
            pass
        return self.seen


@pytest.mark.parametrize(
    ("quantity", "stop", "prices"),
    [
        (10, 0.0, [9_800.0]),  # all of a long
        (-10, 0.0, [10_200.0]),  # all of a short
        (10, 0.0, [9_850.0]),  # half of it
        (10, 9_900.0, [9_900.0]),  # the stop it came with
        (10, 0.0, [10_200.0, 10_149.0]),  # a trailing stop
        (-10, 0.0, [9_800.0, 9_849.0]),
    ],
)
def test_exit_is_the_one_that_python_would_make(
    quantity: float, stop: float, prices: list[float]
) -> None:
    native, plain = Desk(), Desk()
    for desk in (native, plain):
        desk.hold(quantity, stop)
    for price in prices:
        native.engine.publish(native.tick(price))
        plain.loop.stops.on_tick("A", price, 1)
    (left,), ((name, payload),) = native.exits, plain.fired
    assert (left.event_type, left.payload, left.source) == (name, payload, "risk")
    assert not native.fired


def test_no_line_of_python_runs_between_a_tick_and_its_exit() -> None:
    desk = Desk()
    desk.hold()
    ticks = [desk.tick(9_990), desk.tick(9_800)]
    calls: list[str] = []

    def note(frame: FrameType, what: str, _argument: object) -> None:
        if what == "call":
            calls.append(frame.f_code.co_name)

    publish, waiting = desk.engine.publish, desk.engine.lanes.counts
    sys.setprofile(note)
    try:
        publish(ticks[0])
        publish(ticks[1])
    finally:
        sys.setprofile(None)
    assert calls == []
    assert waiting(0)["published"] == 1
    assert [event.payload.reason for event in desk.exits] == ["EXIT_MAE"]


def test_ticks_of_a_list_are_looked_at_one_by_one() -> None:
    desk = Desk()
    desk.hold()
    desk.engine.publish_many([desk.tick(price) for price in (9_990, 9_850, 9_800, 9_700)])
    assert [event.payload.qty for event in desk.exits] == [5, 10]
    spans = desk.loop.stops.take_spans()
    assert spans["count"] == 2
    assert 0 < spans["p50"] <= spans["p99"] <= spans["max"]
    assert desk.loop.stops.take_spans()["count"] == 0


def test_hits_are_told_to_people_at_the_next_look() -> None:
    desk = Desk()
    desk.hold()
    desk.engine.publish(desk.tick(9_800))
    told: list[str] = []
    desk.loop._report = lambda hit: told.append(hit[0])  # type: ignore[method-assign]
    desk.loop.check()
    desk.loop.check()
    assert told == ["A"]


@pytest.mark.parametrize(("price", "quantity"), [(9_800, 10), (9_850, 5)])
def test_exit_that_does_not_get_into_its_lane_is_asked_for_by_the_next_tick(
    price: float, quantity: float
) -> None:
    desk = Desk()
    desk.hold()

    def broken(*_parts: object) -> Event:
        raise MemoryError("no room for an event")

    desk.loop.stops.attach(broken, desk.engine.publish)
    with pytest.raises(MemoryError):
        desk.engine.publish(desk.tick(price))
    desk.loop.stops.attach(desk.engine.new_event, desk.engine.publish)
    desk.engine.publish(desk.tick(price))
    (left,) = desk.exits
    assert isinstance(left.payload, EmergencyOrder)
    assert left.payload.qty == quantity


def test_tick_that_waits_for_room_does_not_confirm_its_own_jump() -> None:
    desk = Desk(EventsConfig(p1=LaneConfig(queue_size=1, overflow="block")))
    desk.hold()
    desk.engine.publish(desk.tick(10_000))
    with pytest.raises(LaneFullError):
        desk.engine.publish(desk.tick(9_000), timeout=0.2)
    assert desk.loop.stops.jumps == 1
    assert not desk.exits


def test_stops_and_their_engine_let_go_of_each_other() -> None:
    desk = Desk()
    loop, engine = weakref.ref(desk.loop), weakref.ref(desk.engine)
    del desk
    gc.collect()
    assert loop() is None
    assert engine() is None
