"""Stops inside publish: the exit is in its lane before the tick's own publishing returns."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from qts.domain import EventRefusedError, SystemClock
from qts.events import Catalogue, Event, EventEngine, Priority
from qts.events import payloads as p
from qts.risk import EMERGENCY_ORDER, MicroRiskLoop, PositionShadow, StopsConfig, ageless


class Desk:
    def __init__(self) -> None:
        catalogue = Catalogue()
        catalogue.register(EMERGENCY_ORDER)
        self.engine = EventEngine(catalogue=catalogue)
        self.codes: list[str] = []
        self.micro = MicroRiskLoop(
            StopsConfig(),
            lambda name, payload: self.engine.emit(name, payload),
            lambda code, _: self.codes.append(code),
            SystemClock(),
            ageless,
        )
        self.engine.attach_watcher("PRICE_TICK", self.micro.stops, "price")
        self.exits: list[Event] = []
        self.got = threading.Event()
        self.engine.on("EMERGENCY_ORDER", self._exit)

    def _exit(self, event: Event) -> None:
        self.exits.append(event)
        self.got.set()

    def hold(self, symbol: str) -> None:
        self.micro.set_positions([PositionShadow(symbol=symbol, quantity=10, average=10_000)], 1e9)

    def tick(self, symbol: str, price: float) -> Event:
        return self.engine.new_event("PRICE_TICK", p.PriceTick(symbol=symbol, price=price))

    @property
    def waiting(self) -> int:
        return self.engine.status().lanes["P0"].published


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.engine.stop()


def test_exit_is_in_its_lane_when_publish_returns(desk: Desk) -> None:
    desk.hold("005930")
    desk.engine.publish(desk.tick("005930", 9_900))
    assert desk.waiting == 0
    desk.engine.publish(desk.tick("000660", 9_800))
    assert desk.waiting == 0
    desk.engine.publish(desk.tick("005930", 9_800))
    assert desk.waiting == 1
    desk.engine.publish(desk.tick("005930", 9_700))
    assert desk.waiting == 1  # it is leaving


@pytest.mark.parametrize("way", ["try_publish", "publish_many"])
def test_every_way_of_publishing_is_watched(desk: Desk, way: str) -> None:
    desk.hold("005930")
    event = desk.tick("005930", 9_800)
    getattr(desk.engine, way)([event] if way == "publish_many" else event)
    assert desk.waiting == 1


def test_strategies_that_burn_do_not_hold_a_stop_up(desk: Desk) -> None:
    stop = threading.Event()

    def burn(_event: Event) -> None:
        while not stop.is_set():
            sum(range(100))

    desk.engine.on(Priority.P2, burn)
    desk.engine.start()
    for number in range(4):
        desk.engine.emit("RISK_EVALUATE", p.EvaluatePayload(subject=str(number)))
    desk.hold("005930")
    desk.engine.publish(desk.tick("005930", 9_800))
    assert desk.waiting == 1
    assert desk.got.wait(10)
    stop.set()
    assert [event.payload.symbol for event in desk.exits] == ["005930"]


def test_watcher_is_set_before_the_start(desk: Desk) -> None:
    desk.engine.start()
    with pytest.raises(EventRefusedError, match="before the start"):
        desk.engine.attach_watcher("PRICE_TICK", desk.micro.stops, "price")
