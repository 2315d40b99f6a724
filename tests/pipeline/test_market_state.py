"""Index, volatility and volume events of a run: each of their handlers acts."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from qts.domain import BookLevel, ManualClock, OrderBook
from qts.events import Catalogue, EventEngine, EventsConfig, Payload, Priority
from qts.events import payloads as p
from qts.pipeline import MarketState, Portfolio
from qts.risk import (
    EMERGENCY_ORDER,
    EmergencyOrder,
    MicroRiskLoop,
    PositionShadow,
    StopsConfig,
    ageless,
)
from tests.instruments import LISTED


class Desk:
    """An engine, a position of ten shares, and what the volatility rules do about it."""

    def __init__(self, config: StopsConfig) -> None:
        self.tripped: list[str] = []
        self.published: list[tuple[str, Payload]] = []
        self.clock = clock = ManualClock()
        catalogue = Catalogue()
        catalogue.register(EMERGENCY_ORDER)
        self.engine = EventEngine(EventsConfig(), catalogue, clock)
        self.portfolio = Portfolio(clock, LISTED)
        self.loop = MicroRiskLoop(config, self._publish, self._trip, clock, ageless)
        self.market = MarketState(self.engine, self.loop, config, self.portfolio, clock)
        self.loop.set_positions([PositionShadow(symbol="A", quantity=10, average=100.0)], 1e6)
        self.loop.stops.on_tick("A", 100.0, clock.monotonic_ns())
        self.engine.start()

    def _publish(self, name: str, payload: Payload) -> None:
        self.published.append((name, payload))

    def _trip(self, code: str, _text: str) -> None:
        self.tripped.append(code)

    def take(self, name: str, payload: msgspec.Struct) -> None:
        self.engine.emit(name, payload)
        assert self.engine.wait_drained(10, Priority.P1)

    def index(self, value: float, change: float, name: str = "KOSPI") -> None:
        self.take("INDEX_UPDATE", p.IndexUpdate(index=name, value=value, change=change))

    @property
    def sold(self) -> list[tuple[str, float]]:
        return [(o.reason, o.qty) for _, o in self.published if isinstance(o, EmergencyOrder)]


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk(StopsConfig())
    yield made
    made.engine.stop()


def test_a_falling_index_warns_then_halves_then_ends_everything(desk: Desk) -> None:
    desk.index(2600.0, 0.0)
    desk.index(2515.0, -0.0327)
    assert (desk.tripped, desk.sold) == (["GR073"], [])
    desk.index(2465.0, -0.0519)
    assert desk.sold == [("EXIT_VOLATILITY", 5.0)]
    desk.index(2392.0, -0.08)
    assert desk.tripped == ["GR073", "FS104"]
    names = [name for name, _ in desk.published]
    assert {"EMERGENCY_STOP", "ETEDA_SUSPEND"} <= set(names)
    assert desk.sold[1:] == [("EXIT_VOLATILITY", 10.0)]
    status = desk.market.status()
    assert (status.indices["KOSPI"].value, status.realised_volatility > 0.08) == (2392.0, True)


def test_the_index_of_volatility_has_thresholds_of_its_own(desk: Desk) -> None:
    desk.take("VIX_UPDATE", p.VixUpdate(value=26.0))
    assert desk.tripped == ["GR073"]
    desk.take("VIX_UPDATE", p.VixUpdate(value=31.0))
    assert desk.sold == [("EXIT_VOLATILITY", 5.0)]
    assert desk.market.status().volatility_index == 31.0


def test_another_index_that_stands_still_changes_nothing(desk: Desk) -> None:
    desk.index(2600.0, 0.0)
    desk.index(850.0, 0.001, "KOSDAQ")
    assert (desk.tripped, desk.published) == ([], [])


def test_the_latest_surges_of_volume_are_kept(desk: Desk) -> None:
    for number in range(30):
        update = p.VolumeUpdate(symbol=f"{number:06}", volume=10.0, turnover=1000.0)
        desk.take("VOLUME_UPDATE", update)
    surges = desk.market.status().surges
    assert [each.symbol for each in surges[:2]] == ["000029", "000028"]
    assert len(surges) == 20


def test_the_latest_book_is_in_the_view_while_it_is_fresh(desk: Desk) -> None:
    now = desk.clock.now().timestamp()
    newest = OrderBook("A", (BookLevel(99.0, 5.0),), (BookLevel(101.0, 7.0),), now)
    desk.take("ORDERBOOK_UPDATE", newest)
    desk.take("ORDERBOOK_UPDATE", OrderBook("A", (), (), now - 1))  # of a slower lane worker
    desk.take("ORDERBOOK_UPDATE", OrderBook("B", (), (), now - 11))
    view = desk.portfolio.view()
    assert view.book("A") == newest
    assert view.book("B") is None
    assert view.book("C") is None
    assert list(desk.market.status().books) == ["A"]
