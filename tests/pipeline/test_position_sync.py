"""Positions and stops of a run: restored after a restart, followed in the ledger, parked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import pytest

from qts.database import Database, DatabaseConfig
from qts.domain import IntentType, ManualClock, OperationError, Secret, Side, Tick
from qts.orders import adopt_holding, external_fill, half_sold_symbols
from qts.pipeline import Portfolio, position_sync
from qts.pipeline.engine import follow_ledger, save_stops
from qts.pipeline.position_sync import PositionSync
from qts.risk import (
    EmergencyOrder,
    MicroRiskLoop,
    PositionStops,
    StopsConfig,
    StrategyStopsConfig,
    ageless,
    load_stop_records,
)
from tests.instruments import LISTED
from tests.orders.kit import START, SYMBOL, OrderKit, open_kit
from tests.orders.waiting import store_stop_order
from tests.outbox.kit import until

D = Decimal
PRICE, HUNDRED = D(1_000_000), D(100)


class Life:
    """One life of the process: portfolio, stops and their sync, on the ledger of the kit."""

    def __init__(self, kit: OrderKit, **config: Any) -> None:
        self.kit = kit
        self.codes: list[str] = []
        self.exits: list[Any] = []
        self.portfolio = Portfolio(kit.clock, LISTED)
        self.micro_risk = MicroRiskLoop(
            StopsConfig(**config),
            lambda _name, payload: self.exits.append(payload),
            lambda code, _text: self.codes.append(code),
            kit.clock,
            ageless,
        )
        self.sync = PositionSync(self.portfolio, self.micro_risk, {}, kit.clock)

    async def start(self) -> Life:
        await self.sync.load(self.kit.database, self.kit.venue)
        return self

    async def save(self) -> None:
        await self.sync.save_stops(self.kit.database, self.kit.venue)

    def tick(self, price: float, symbol: str = SYMBOL) -> None:
        self.portfolio.apply_tick(Tick(symbol, price, 1, price, price, 0.0))
        self.sync.push_to_stops()
        self.micro_risk.stops.on_tick(symbol, price, self.kit.clock.monotonic_ns() + 1)

    @property
    def shadow(self) -> dict[str, Any] | None:
        return self.micro_risk.stops.position(SYMBOL)

    @property
    def sold(self) -> list[float]:
        return [each.qty for each in self.exits]


@pytest.fixture
async def database(database_url: Secret) -> AsyncIterator[Database]:
    async with Database.open(database_url, DatabaseConfig(pool_min=1, pool_max=10)) as database:
        yield database


@pytest.fixture
async def kit(database: Database) -> AsyncIterator[OrderKit]:
    async with open_kit(database, ManualClock(START)) as made:
        yield made


async def buy(kit: OrderKit, quantity: Decimal = HUNDRED, price: Decimal = PRICE) -> None:
    order = await kit.order(quantity=quantity, price=price)
    kit.venue.trade(order, quantity, price)
    await kit.reconciler.reconcile_now()


async def sell(kit: OrderKit, quantity: Decimal, price: Decimal, **more: Any) -> None:
    order = await kit.order(side=Side.SELL, quantity=quantity, price=price, **more)
    kit.venue.trade(order, quantity, price)
    await kit.reconciler.reconcile_now()


async def test_an_armed_trailing_stop_survives_a_restart(kit: OrderKit) -> None:
    await buy(kit)
    first = await Life(kit).start()
    first.tick(1_020_000)
    await first.save()
    second = await Life(kit).start()
    assert first.shadow is not None
    assert second.shadow is not None
    assert second.shadow["trailing"] == first.shadow["trailing"] == 1_020_000 * 0.995
    second.tick(1_014_000)
    assert [(each.qty, each.stop_price) for each in second.exits] == [(100, 1_014_900)]


@pytest.mark.parametrize("saved", [True, False])
async def test_four_restarts_at_a_loss_sell_one_half_once(kit: OrderKit, saved: bool) -> None:
    """Also when the process died before it had stored that the half was sold."""
    await buy(kit)
    sold: list[float] = []
    for _ in range(5):
        life = await Life(kit).start()
        life.tick(984_000)
        life.tick(984_000)
        for each in life.exits:
            assert isinstance(each, EmergencyOrder)
            sold.append(each.qty)
            quantity = D(str(each.qty))
            await sell(kit, quantity, D(984_000), intent_type=IntentType.EXIT_MAE)
        if saved:
            await life.save()
    assert sold == [50]
    assert (await kit.position())[0] == 50


async def test_a_half_counts_for_the_position_before_it_grew(kit: OrderKit) -> None:
    await buy(kit)
    await sell(kit, D(50), D(984_000), intent_type=IntentType.EXIT_MAE)
    assert await half_sold_symbols(kit.database, kit.venue.key) == {SYMBOL}
    await buy(kit, D(10))
    assert await half_sold_symbols(kit.database, kit.venue.key) == frozenset()


async def test_another_position_in_the_symbol_begins_anew(kit: OrderKit) -> None:
    await buy(kit)
    first = await Life(kit).start()
    first.tick(1_020_000)
    await first.save()
    await kit.clock.sleep(0)
    await cast(ManualClock, kit.clock).advance(60)
    await sell(kit, D(100), D(1_015_000))
    await cast(ManualClock, kit.clock).advance(60)
    await buy(kit)
    second = await Life(kit).start()
    assert second.shadow is not None
    assert (second.shadow["best"], second.shadow["trailing"]) == (1_000_000, None)
    second.tick(1_001_000)
    await second.save()
    stored = (await load_stop_records(kit.database, kit.venue.key))[SYMBOL]
    assert stored.state is not None
    assert stored.state[0] == 1_001_000


async def test_hold_time_counts_from_the_entry(kit: OrderKit) -> None:
    await buy(kit)
    clock = cast(ManualClock, kit.clock)
    await clock.advance(3_500)
    life = Life(kit)
    life.sync = PositionSync(life.portfolio, life.micro_risk, {"scalper": "SCALP"}, kit.clock)
    await life.start()
    life.micro_risk.check()
    assert (life.exits, life.codes) == ([], ["GR072"])  # no price yet is not a silent feed
    await clock.advance(101)
    life.sync.push_to_stops()
    life.micro_risk.check()
    assert [each.reason for each in life.exits] == [IntentType.EXIT_TIME]


async def test_the_stops_of_its_strategy_watch_a_position_after_a_restart(kit: OrderKit) -> None:
    await buy(kit)
    wide = StrategyStopsConfig(mae_half=0.1, mae_full=0.2).over(StopsConfig())
    assert wide is not None
    cases: list[tuple[dict[str, PositionStops], int]] = [
        ({"scalper": wide}, 0),
        ({"other": wide}, 1),
        ({}, 1),
    ]
    for own, sold in cases:
        life = Life(kit)
        life.sync = PositionSync(life.portfolio, life.micro_risk, {}, kit.clock, own)
        await life.start()
        full = 0.8 if sold == 0 else 0.98
        assert life.micro_risk.stop_price(SYMBOL) == pytest.approx(1_000_000 * full)
        life.tick(970_000)
        assert len(life.exits) == sold


async def test_orders_at_the_venue_are_loaded_and_stop_orders_are_not(kit: OrderKit) -> None:
    """Those that wait are read by StopOrders, which triggers them."""
    order = await kit.submit()
    await store_stop_order(kit.database, kit.venue.key)
    life = await Life(kit).start()
    assert [each.intent_id for each in life.portfolio.view().orders] == [str(order.intent_id)]


async def test_a_database_that_is_away_costs_freshness_alone(kit: OrderKit) -> None:
    await buy(kit)
    life = await Life(kit).start()
    life.tick(1_020_000)
    away = cast(Any, SimpleNamespace(execute=_fail))
    with pytest.raises(OperationError):
        await life.sync.save_stops(away, kit.venue)
    life.tick(1_030_000)
    await life.save()
    stored = (await load_stop_records(kit.database, kit.venue.key))[SYMBOL]
    assert stored.state is not None
    assert stored.state[0] == 1_030_000


async def _fail(*_: object) -> None:
    raise OperationError("no connection")


async def test_nothing_is_written_while_nothing_changes(kit: OrderKit) -> None:
    await buy(kit)
    life = await Life(kit).start()
    life.tick(1_000_000)
    await life.save()
    before = await kit.database.fetchval("SELECT updated_at FROM position_stop")
    life.tick(999_000)
    life.tick(1_000_000)
    await life.save()
    first = await kit.database.fetchval("SELECT updated_at FROM position_stop")
    assert first > before  # the worst price
    life.tick(999_500)
    await life.save()
    assert await kit.database.fetchval("SELECT updated_at FROM position_stop") == first


@asynccontextmanager
async def following(life: Life) -> AsyncIterator[None]:
    """The tasks of a run that follow the ledger and save the stops."""
    parts = cast(
        Any,
        SimpleNamespace(
            database=life.kit.database,
            broker=life.kit.venue,
            positions=life.sync,
            clock=SimpleNamespace(sleep=asyncio.sleep),
        ),
    )
    tasks = [asyncio.create_task(work(parts)) for work in (follow_ledger, save_stops)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)


@pytest.mark.parametrize("reads", [1, 2])
async def test_an_adoption_between_two_reads_is_not_watched(
    kit: OrderKit, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.venue.external = {SYMBOL: D(5)}
    await kit.reconciler.reconcile_now()
    life = await Life(kit).start()
    life.tick(800_000)
    done = 0

    def adopting(read: Any) -> Any:
        async def read_then_adopt(*arguments: Any) -> Any:
            nonlocal done
            found = await read(*arguments)
            done += 1
            if done == reads:
                cost = external_fill(SYMBOL, D(5), PRICE)
                await adopt_holding(kit.database, kit.bus, kit.venue.key, cost, clock=kit.clock)
            return found

        return read_then_adopt

    for name in ("list_positions", "load_stop_records"):
        monkeypatch.setattr(position_sync, name, adopting(getattr(position_sync, name)))
    for _ in range(2):
        await life.sync.reload(kit.database, kit.venue)
        assert life.shadow is None
    assert SYMBOL in life.portfolio.positions
    assert life.sync.unwatched() == {SYMBOL}


@pytest.mark.parametrize("stops", [False, True])
async def test_an_adoption_reaches_a_running_qts(kit: OrderKit, stops: bool) -> None:
    kit.venue.external = {SYMBOL: D(5)}
    await kit.reconciler.reconcile_now()
    life = await Life(kit).start()
    life.tick(800_000)
    assert not life.portfolio.positions
    async with following(life):
        cost = external_fill(SYMBOL, D(5), PRICE)
        await adopt_holding(
            kit.database, kit.bus, kit.venue.key, cost, stops=stops, clock=kit.clock
        )
        await until(lambda: _async(SYMBOL in life.portfolio.positions))
        assert (life.shadow is not None) == stops
        assert life.sync.unwatched() == (frozenset() if stops else {SYMBOL})
        for price in (800_000, 795_000, 789_000):  # 20 % under water, then 1.4 % below adoption
            life.tick(price)
            life.micro_risk.check()
        assert life.exits == []
        life.tick(784_000)  # 2 % below the price at the adoption
        assert life.sold == ([5] if stops else [])
        await until(lambda: _reference(kit, 800_000.0 if stops else None))
    restarted = await Life(kit).start()
    assert (restarted.shadow is not None) == stops
    if restarted.shadow is not None:
        assert (restarted.shadow["average"], restarted.shadow["worst"]) == (800_000, 784_000)


async def _async(value: bool) -> bool:
    return value


async def _reference(kit: OrderKit, expected: float | None) -> bool:
    stored = (await load_stop_records(kit.database, kit.venue.key)).get(SYMBOL)
    return stored is not None and stored.reference == expected


async def test_a_reduction_by_hand_reaches_a_running_qts(kit: OrderKit) -> None:
    await buy(kit)
    life = await Life(kit).start()
    life.tick(1_020_000)
    async with following(life):
        loss = external_fill(SYMBOL, D(-40), PRICE)
        await adopt_holding(kit.database, kit.bus, kit.venue.key, loss, clock=kit.clock)
        await until(lambda: _async(life.portfolio.positions[SYMBOL].quantity == 60))
        assert life.shadow is not None
        assert (life.shadow["quantity"], life.shadow["best"]) == (60, 1_020_000)


async def test_what_grows_keeps_its_reference(kit: OrderKit) -> None:
    kit.venue.external = {SYMBOL: D(5)}
    await kit.reconciler.reconcile_now()
    cost = external_fill(SYMBOL, D(5), PRICE)
    await adopt_holding(kit.database, kit.bus, kit.venue.key, cost, stops=True, clock=kit.clock)
    life = await Life(kit).start()
    assert life.shadow is None  # until a price is known
    life.tick(800_000)
    await life.save()
    await cast(ManualClock, kit.clock).advance(1)
    await buy(kit, D(5), D(820_000))
    await life.sync.reload(kit.database, kit.venue)
    for each in (life, await Life(kit).start()):
        assert each.shadow is not None
        assert each.shadow["average"] == pytest.approx(810_000)


async def test_dust_is_parked_and_watched_again_when_it_can_be_sold(kit: OrderKit) -> None:
    await buy(kit, D("0.006"))
    life = await Life(kit).start()
    life.tick(1_000_000)
    life.tick(840_000)
    life.tick(830_000)  # 4,980 won
    assert life.codes == ["GR075"]
    assert life.micro_risk.parked == {SYMBOL}
    del life.exits[:]
    life.tick(820_000)
    assert (life.exits, life.shadow) == ([], None)
    await life.save()
    second = await Life(kit).start()
    second.tick(835_000)  # 5,010 won: not enough to try again
    assert (second.exits, second.codes, second.micro_risk.parked) == ([], [], {SYMBOL})
    second.tick(852_000)
    assert second.micro_risk.parked == set()
    second.tick(852_000)
    assert second.sold == [0.006]


async def test_what_the_venue_calls_too_small_is_parked_until_it_is_worth_more(
    kit: OrderKit,
) -> None:
    await buy(kit, D("0.006"))
    life = await Life(kit).start()
    life.tick(1_000_000)
    life.micro_risk.park(SYMBOL, "under_min_total_ask")
    life.tick(900_000)
    assert (life.exits, life.shadow) == ([], None)
    life.tick(919_000)
    assert life.micro_risk.parked == set()


async def test_stocks_are_never_dust(kit: OrderKit) -> None:
    order = await kit.order(symbol="005930", quantity=D(1), price=D(1_000))
    kit.venue.trade(order, D(1), D(1_000))
    await kit.reconciler.reconcile_now()
    life = await Life(kit).start()
    life.tick(1_000, "005930")
    assert (life.codes, life.micro_risk.parked) == ([], set())
    life.tick(979, "005930")
    assert life.sold == [1]
