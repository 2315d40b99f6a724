"""Brokers under test, each on a venue with its own record of orders to check against."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from qts.brokers import (
    Broker,
    BrokersConfig,
    FeesConfig,
    KisBroker,
    PaperBroker,
    PaperConfig,
    UpbitBroker,
)
from qts.brokers.kis_codec import SEOUL
from qts.database import Database
from qts.domain import (
    Clock,
    ManualClock,
    Secret,
    SystemClock,
    Tick,
)
from qts.simulators import (
    Fault,
    KisKey,
    KisSimulator,
    KisSimulatorConfig,
    MarketConfig,
    RequestLimits,
    UpbitKey,
    UpbitSimulator,
    UpbitSimulatorConfig,
)
from qts.testing import BrokerMarket, BrokerRecord, FaultKind, NetworkedMarket
from qts.venues import KisClient, KisConfig, RateLimitConfig, RateLimiter, UpbitClient, UpbitConfig
from tests.instruments import LISTED

MORNING = datetime(2026, 11, 16, 9, 30, tzinfo=SEOUL)  # a Monday, the market is open
NO_SURGES = MarketConfig(symbols=20, surges_per_hour=0.0, suspended=0, start=MORNING)
HIGH_LIMITS = RateLimitConfig(per_second=1000, per_minute=60_000, per_day=1_000_000)
# What the simulated KIS charges.
COSTS = FeesConfig(krx_fee=0.00014, krx_sale_tax=0.0015)
COIN = Decimal(10**8)
CASH = 100_000_000_000  # enough to empty a level of a book


FILL_FAULTS = ("duplicate_fills", "reorder_fills", "lose_fills")


class SimulatedMarket(NetworkedMarket):
    """Market of a simulator."""

    start_cash = Decimal(CASH)
    order_path = ""
    simulator: Any = None

    async def go(self) -> None:
        await super().go()
        self.simulator.catch_up()

    def inject_fault(self, kind: FaultKind, count: int | None = 1) -> None:
        if kind in FILL_FAULTS:
            inject_fault(self, kind, path="", method="", count=count)
        else:
            inject_fault(self, kind, count=count, seconds=3600)  # on a clock that does not move

    def drop_streams(self) -> int:
        dropped: int = self.simulator.drop_streams()
        return dropped


# -- paper


class PaperVenue(BrokerMarket):
    start_cash = Decimal(CASH)
    symbol, quantity, tolerance = "005930", Decimal(10), Decimal(0)

    def __init__(self, broker: PaperBroker, clock: ManualClock, database: Database) -> None:
        super().__init__(broker, clock)
        self._paper, self._database, self._last = broker, database, Decimal(70_000)
        self._send_tick()

    def quote(self) -> tuple[Decimal, Decimal]:
        return self._last, self._last + 100

    def tick(self) -> Decimal:
        return Decimal(100)

    def more_than_shown(self) -> Decimal:
        return Decimal(70)  # half of a tick's volume can be filled: 50

    async def move(self, percent: float) -> None:
        self._last += int(self._last * Decimal(percent) / 100 / 100) * 100
        self._send_tick()

    async def go(self) -> None:
        await self.clock.advance(1.0)
        self._send_tick()
        await self._paper.wait_written()

    def _send_tick(self) -> None:
        bid, ask = self.quote()
        self._paper.on_tick(Tick(self.symbol, float(self._last), 100.0, float(bid), float(ask)))

    async def record(self) -> dict[str, BrokerRecord]:
        rows = await self._database.fetch(
            """SELECT o.order_id, o.quantity, o.filled, o.state = 'OPEN' AS is_open,
                coalesce(sum(f.quantity), 0) AS traded,
                coalesce(sum(f.price * f.quantity), 0) AS paid
            FROM paper_order o LEFT JOIN paper_fill f USING (order_id) GROUP BY o.order_id"""
        )
        assert all(row["filled"] == row["traded"] for row in rows)
        return {
            row["order_id"]: BrokerRecord(
                row["quantity"], row["filled"], row["paid"], row["is_open"]
            )
            for row in rows
        }

    async def cash(self) -> Decimal:
        found = await self._database.fetchval(
            """SELECT coalesce(sum(
                CASE side WHEN 'BUY' THEN price * quantity ELSE -price * quantity END + fee), 0)
            FROM paper_fill"""
        )
        return self.start_cash - Decimal(found)


@asynccontextmanager
async def paper(database: Database, _folder: Path) -> AsyncIterator[BrokerMarket]:
    clock = ManualClock(MORNING)
    config = PaperConfig(volume_share=0.5, cash=CASH)
    async with PaperBroker.open(database, config, COSTS, LISTED, clock) as broker:
        yield PaperVenue(broker, clock, database)


# -- KIS


class KisVenue(SimulatedMarket):
    symbol, quantity = "005930", Decimal(10)
    tolerance = Decimal(20)  # won: the venue rounds the fee of each fill down
    order_path = "/uapi/domestic-stock/v1/trading/order-cash"

    def __init__(self, broker: Broker, clock: ManualClock, simulator: KisSimulator) -> None:
        super().__init__(broker, clock)
        self.simulator = simulator
        self._index = simulator.market.index[self.symbol]

    def quote(self) -> tuple[Decimal, Decimal]:
        book = self.simulator.market.book(self._index)
        return Decimal(book.bids[0].price), Decimal(book.asks[0].price)

    def tick(self) -> Decimal:
        return Decimal(100)

    def more_than_shown(self) -> Decimal:
        shown = self.simulator.market.book(self._index).asks[0].quantity
        return Decimal(shown + 7)

    async def move(self, percent: float) -> None:
        self.simulator.inject("surge", self.symbol, {"percent": percent, "over_s": 2})

    async def record(self) -> dict[str, BrokerRecord]:
        return {
            f"20261116-{entry.number}": BrokerRecord(
                Decimal(entry.order.quantity),
                Decimal(entry.order.filled),
                Decimal(entry.order.paid),
                entry.order.open,
            )
            for entry in self.simulator.orders.entries
            if entry.kind != "cancel"
        }

    async def cash(self) -> Decimal:
        (customer,) = self.simulator.gateway.customers.values()
        return Decimal(customer.account.cash)


def kis_config(url: str, **changes: Any) -> KisConfig:
    key = KisKey()
    return KisConfig(
        app_key=Secret(key.app_key),
        app_secret=Secret(key.app_secret),
        hts_id=Secret(key.hts_id),
        url=url,
        stream_url=url.replace("http", "ws"),
        **{"account": Secret(key.account), "limits": HIGH_LIMITS, "timeout_s": 2.0, **changes},
    )


class ClientClock(SystemClock):
    """Wall clock of the test, moved by hand; limits and sleeps of the client run in real time."""

    def __init__(self, wall: Clock) -> None:
        self._wall = wall

    def now(self) -> datetime:
        return self._wall.now()


@asynccontextmanager
async def kis_client(
    config: KisConfig, folder: Path, wall: Clock | None = None
) -> AsyncIterator[KisClient]:
    clock = ClientClock(wall or SystemClock())
    budget = RateLimiter(config.key_limits, clock)
    try:
        async with KisClient.open(config, budget, clock, folder) as client:
            yield client
    finally:
        budget.close()


@asynccontextmanager
async def kis(database: Database, folder: Path, **settings: Any) -> AsyncIterator[KisVenue]:
    clock = ManualClock(MORNING)
    config = KisSimulatorConfig(
        **{
            "market": NO_SURGES,
            "limits": RequestLimits(second=0, minute=0, day=0),
            "keys": (KisKey(cash=CASH),),
            **settings,
        }
    )
    async with (
        KisSimulator(config, clock) as simulator,
        kis_client(kis_config(simulator.url, paper=config.paper), folder, clock) as client,
    ):
        broker = KisBroker(
            client, database, BrokersConfig(broker="kis", costs=COSTS), clock, LISTED
        )
        yield KisVenue(broker, clock, simulator)


# -- Upbit


class UpbitVenue(SimulatedMarket):
    symbol, quantity = "KRW-BTC", Decimal("0.015")
    order_path = "/v1/orders"

    def __init__(self, broker: Broker, clock: ManualClock, simulator: UpbitSimulator) -> None:
        super().__init__(broker, clock)
        self.simulator = simulator
        self._index = simulator.market.index[self.symbol]

    def quote(self) -> tuple[Decimal, Decimal]:
        book = self.simulator.market.book(self._index)
        return Decimal(book.bids[0].price) / COIN, Decimal(book.asks[0].price) / COIN

    def tick(self) -> Decimal:
        return Decimal(1000)

    def more_than_shown(self) -> Decimal:
        shown = Decimal(self.simulator.market.book(self._index).asks[0].quantity)
        return shown / COIN + Decimal("0.001")

    async def move(self, percent: float) -> None:
        self.simulator.inject("surge", self.symbol, {"percent": percent, "over_s": 2})

    async def record(self) -> dict[str, BrokerRecord]:
        return {
            entry.uuid: BrokerRecord(
                entry.order.quantity / COIN,
                entry.order.filled / COIN,
                entry.order.paid / COIN / COIN,
                entry.order.open,
            )
            for entry in self.simulator.orders.entries.values()
        }

    async def cash(self) -> Decimal:
        (customer,) = self.simulator.gateway.customers.values()
        return Decimal(customer.account.cash) / COIN


def upbit_config(simulator: UpbitSimulator, **changes: Any) -> UpbitConfig:
    key = UpbitKey()
    rates = ("orders_per_second", "requests_per_second", "quotes_per_second")
    settings: dict[str, Any] = {
        "access_key": Secret(key.access_key),
        "secret_key": Secret(key.secret_key),
        "url": simulator.url,
        "stream_url": simulator.ws_url + "/websocket/v1",
        "timeout_s": 2.0,
        **dict.fromkeys(rates, 100),
    }
    return UpbitConfig(**(settings | changes))


@asynccontextmanager
async def upbit(_database: Database, _folder: Path, **settings: Any) -> AsyncIterator[UpbitVenue]:
    clock = ManualClock(MORNING)
    rates = dict.fromkeys(("order_second", "default_second", "quotation_second"), 100_000)
    config = UpbitSimulatorConfig(
        **{"market": NO_SURGES, "keys": (UpbitKey(krw=CASH),), **rates, **settings}
    )
    async with (
        UpbitSimulator(config, clock) as simulator,
        UpbitClient.open(upbit_config(simulator), ClientClock(clock)) as client,
    ):
        broker = UpbitBroker(client, BrokersConfig(broker="upbit"), clock)
        yield UpbitVenue(broker, clock, simulator)


def inject_fault(venue: BrokerMarket, kind: Any, **values: Any) -> None:
    """Inject a fault into the next order."""
    assert isinstance(venue, SimulatedMarket)
    values = {"path": venue.order_path, "method": "POST", "count": 1, **values}
    venue.simulator.faults.add(Fault(kind=kind, **values))


NETWORKED: dict[str, Callable[[Database, Path], AbstractAsyncContextManager[SimulatedMarket]]] = {
    "kis": kis,
    "upbit": upbit,
}
VENUES: dict[str, Callable[[Database, Path], AbstractAsyncContextManager[BrokerMarket]]] = {
    "paper": paper,
    **NETWORKED,
}
