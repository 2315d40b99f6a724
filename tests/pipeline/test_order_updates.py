"""Fills and order changes come back through lane P0: each once, in the order of the commits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from qts.domain import Fill, ManualClock, Secret, Side
from qts.events import (
    AsyncPublisher,
    EventEngine,
    EventsConfig,
    LaneAlert,
    LaneConfig,
    Priority,
)
from qts.events import payloads as p
from qts.orders import FillApplied, IntentRef, OrderUpdate
from qts.outbox import PostgresBus, uuid7
from qts.pipeline import (
    IntentTracker,
    OrderUpdatePublisher,
    Portfolio,
    StrategyRunner,
    StrategyUpdate,
)
from qts.pipeline.order_handlers import OrderEventHandler
from qts.pipeline.position_sync import PositionSync
from qts.pipeline.risk_snapshot import AccountVersion
from qts.risk import MicroRiskLoop, StopsConfig, ageless
from tests.instruments import LISTED
from tests.orders.examples import Examples, opened
from tests.orders.fake_venue import CASH, Venue, cost
from tests.orders.kit import START, STREAMS, SYMBOL, OrderKit

D = Decimal
TIMEOUT_S = 30


class Strategy:
    """Takes what the runner of a strategy would."""

    def __init__(self) -> None:
        self.updates: list[StrategyUpdate] = []

    def update(self, update: StrategyUpdate) -> None:
        self.updates.append(update)

    @property
    def fills(self) -> list[Fill]:
        return [each.fill for each in self.updates if each.fill is not None]

    @property
    def states(self) -> list[str]:
        return [each.order.state for each in self.updates if each.order is not None]


class FragilePortfolio(Portfolio):
    """Raises for the next `failures` fills."""

    failures = 0

    def apply_position(self, *arguments: Any) -> None:
        if self.failures:
            self.failures -= 1
            raise ValueError("planted")
        super().apply_position(*arguments)


class FragileStops(MicroRiskLoop):
    """Raises for the next `failures` pushes, after the portfolio has moved."""

    failures = 0

    def set_positions(self, *arguments: Any) -> None:
        if self.failures:
            self.failures -= 1
            raise ValueError("planted")
        super().set_positions(*arguments)


class PublishingKit(OrderKit):
    """Publishes what its ledger reports, as a run does."""

    updates: OrderUpdatePublisher | None = None

    def _on_change(self, change: OrderUpdate) -> None:
        super()._on_change(change)
        if self.updates is not None:
            self.updates(change)


class Run:
    """Ledger, lane P0 and what its handlers move; one strategy, on a venue in memory."""

    def __init__(self, examples: Examples, config: EventsConfig) -> None:
        self.database, self.do = examples.database, examples.do
        examples.begin()
        clock = ManualClock(START)
        self.venue, self.portfolio = Venue(clock), FragilePortfolio(clock, LISTED)
        self.alerts: list[LaneAlert] = []
        self.engine = EventEngine(config, on_alert=self.alerts.append)
        self.strategy, self.blocked = Strategy(), threading.Event()
        self.engine.on("TRAILING_STOP_HIT", lambda _event: self.blocked.wait(TIMEOUT_S))
        self.engine.on(Priority.P0, lambda event: self.published.append(event.event_type))
        self.published: list[str] = []
        self.micro_risk = FragileStops(StopsConfig(), Mock(), Mock(), clock, ageless)
        self.positions = PositionSync(self.portfolio, self.micro_risk, {}, clock)
        bus = PostgresBus(self.database, STREAMS)
        self.kit = PublishingKit(self.database, bus, self.venue, clock)
        self.tracker = IntentTracker()
        self.do(self._open())

    async def _open(self) -> None:
        version, cache = AccountVersion(), cast("Any", AsyncMock())
        self.publisher = AsyncPublisher(self.engine, "tests")
        updates = OrderUpdatePublisher(self.publisher, self.positions, version, Mock())
        runners = {"scalper": cast("StrategyRunner", self.strategy)}
        self.handler = OrderEventHandler(
            self.engine, self.positions, self.tracker, cache, version, runners
        )
        self.engine.start()
        await self.kit.open()
        await self.positions.load(self.database, self.venue)
        self.kit.updates = updates

    def close(self) -> None:
        self.blocked.set()
        self.do(asyncio.to_thread(self.engine.stop))

    # --- what happens ---------------------------------------------------------------------------

    async def act(self, action: str) -> None:
        is_open = [o.broker_order_id for o in self.venue.book.values() if o.state == "OPEN"]
        if action == "order":
            await self.kit.order(quantity=D("3.00000001"), price=D("100.1"))
        elif action == "sell" and (await self.kit.position())[0] >= 1:
            await self.kit.order(side=Side.SELL, quantity=D(1), price=D("99.9"))
        elif action in ("trade", "burst") and is_open:
            for order_id in is_open if action == "burst" else is_open[:1]:
                order = self.venue.book[order_id]
                self.venue.trade(order_id, min(D(1), order.quantity - order.filled), D("100.1"))
            new = self.venue.trades[-len(is_open) :]
            reports = [*new, *new] if action == "burst" else new[-1:]
            await asyncio.gather(*map(self.kit.reconciler.handle_report, reports))
        elif action == "cancel" and is_open:
            await self.venue.cancel(is_open[0])
            await self.kit.reconciler.handle_report(self.venue.book[is_open[0]])
        elif action == "retry":
            self.portfolio.failures = 2
        elif action == "stops":
            self.micro_risk.failures = 2
        elif action == "die":
            self.portfolio.failures = 4
        elif action == "block":
            self.blocked.clear()
            stop = p.TrailingStopHit(symbol=SYMBOL, stop_price=1, price=1)
            self.publisher.emit("TRAILING_STOP_HIT", stop)
        elif action == "unblock":
            self.blocked.set()
        elif action == "fault":
            self.engine.lanes.inject_fault(0)
        elif action == "reload":
            self.micro_risk.failures = 0
            await self.positions.reload(self.database, self.venue)

    async def settle(self) -> None:
        self.blocked.set()
        assert await self.publisher.close(TIMEOUT_S)
        while not await asyncio.to_thread(self.engine.wait_drained, 0.05, Priority.P0):
            self.engine.check()  # restarts the thread
        self.portfolio.failures = self.micro_risk.failures = 0
        await self.handler.close()

    # --- what must be so ------------------------------------------------------------------------

    def check(self) -> None:
        """Portfolio and stops are the ledger's, and the strategy had each fill once, in order."""
        rows = self.do(self.database.fetch("SELECT symbol, quantity, average_price FROM position"))
        held = {row[0]: (row[1], row[2]) for row in rows if row[1]}
        mine = self.portfolio.positions.items()
        assert {name: (each.quantity, each.average_price) for name, each in mine} == held
        assert self.portfolio.cash == CASH - sum(map(cost, self.venue.trades), D(0))
        stop = self.micro_risk.stops.position(SYMBOL)
        assert (stop["quantity"] if stop else 0) == float(held.get(SYMBOL, (0, 0))[0])
        applied = [each for each in self.kit.changes if isinstance(each, FillApplied)]
        assert self.strategy.fills == [each.fill for each in applied if each.counted]
        assert len({fill.trade_id for fill in self.strategy.fills}) == len(self.strategy.fills)

    def finish(self) -> None:
        self.do(self.settle())
        if self.engine.dead_letters.count:  # then alone the ledger has to repair something
            self.do(self.positions.reload(self.database, self.venue, after_stop=True))
        self.check()


@pytest.fixture
def examples(database_url: Secret) -> Iterator[Examples]:
    with opened(database_url) as examples:
        yield examples


@pytest.fixture
def run(examples: Examples) -> Iterator[Run]:
    run = Run(examples, EventsConfig())
    yield run
    run.close()


WEIGHTS = {"order": 2, "trade": 3, "burst": 2}
RARE = ("sell", "cancel", "retry", "stops", "die", "block", "unblock", "fault", "reload")
ACTION = st.sampled_from([name for name, n in WEIGHTS.items() for _ in range(n)] + list(RARE))


def play(examples: Examples, actions: list[str]) -> None:
    run = Run(examples, EventsConfig(p0=LaneConfig(queue_size=3, overflow="block")))
    try:
        for action in ["order", *actions]:
            run.do(run.act(action))
        run.finish()
    finally:
        run.close()


@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(actions=st.lists(ACTION, min_size=1, max_size=12))
def test_the_portfolio_is_the_ledgers_whatever_happens_to_the_lane(
    examples: Examples, actions: list[str]
) -> None:
    play(examples, actions)


@pytest.mark.parametrize("broken", ["order", "once", "dead letter", "notify"])
def test_the_property_can_fail(
    examples: Examples, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """Without FIFO, the expected fills, the reload's cash, or the order of commits, it does."""
    actions = ["order", "order", "burst", "burst", "burst"]
    tasks: list[asyncio.Future[None]] = []
    if broken == "order":

        def emit(self: AsyncPublisher, name: str, payload: Any) -> None:
            event = self._engine.new_event(name, payload, self._source)
            if not self._engine.try_publish(event):  # a task for each event
                tasks.append(asyncio.ensure_future(self._engine.publish_async(event)))

        monkeypatch.setattr(AsyncPublisher, "emit", emit)
        actions = ["order", "order", "block", *["burst"] * 6]
    elif broken == "once":
        apply = PositionSync.apply

        def apply_twice(self: PositionSync, update: p.PositionUpdate) -> None:
            expected = dict(self._expected)
            try:
                apply(self, update)
            finally:
                self._expected.update(expected)

        monkeypatch.setattr(PositionSync, "apply", apply_twice)
        actions = ["stops", "trade"]
    elif broken == "dead letter":
        monkeypatch.setattr(PositionSync, "_lost", lambda _self, _all: list[str]())
        actions = ["die", "trade"]
    else:
        monkeypatch.setattr(
            "qts.orders.Ledger.in_order", lambda _self, _symbol: asyncio.Semaphore(99)
        )
        monkeypatch.setattr("qts.orders.Ledger.notify", _delayed_notify)
        actions = ["order", "burst"]
    with pytest.raises(AssertionError):
        play(examples, actions)


def _delayed_notify(ledger: Any, changes: Any) -> None:
    """Notify the first of two commits after the second."""
    held = ledger.__dict__.setdefault("_held", [])
    changes = list(changes)
    if any(isinstance(each, FillApplied) for each in changes):
        if not held:
            held.append(changes)
            return
        changes += held.pop()
    for each in changes:
        ledger._on_change(each)


def test_a_partial_fill_has_the_true_remainder(run: Run) -> None:
    for action in ("order", "trade", "trade", "trade", "trade"):
        run.do(run.act(action))
    run.finish()
    fills = [name for name in run.published if name.startswith("FILL_") and "REC" not in name]
    assert fills == ["FILL_PARTIAL"] * 3 + ["FILL_CONFIRMED"]
    assert run.strategy.fills[-1].quantity == D("0.00000001")  # exact, no float's neighbour
    assert run.strategy.states == ["SENT", "ACKED", "FILLED"]
    order = run.strategy.updates[-1].order
    assert order is not None
    assert (order.filled, order.remaining) == (D("3.00000001"), D(0))


def test_every_kind_of_change_is_published_where_it_happens(run: Run) -> None:
    run.do(run.act("order"))
    run.do(run.act("trade"))
    run.do(run.act("cancel"))
    run.finish()
    assert run.published == [
        "ORDER_SENT",  # SENT
        "ORDER_SENT",  # ACKED
        "FILL_RECEIVED",
        "POSITION_UPDATE",
        "FILL_PARTIAL",
        "ORDER_CANCELLED",
    ]
    (cancelled,) = [each.order for each in run.strategy.updates if each.order][-1:]
    assert cancelled is not None
    assert (cancelled.state, cancelled.filled) == ("CANCELLED", D(1))
    assert cancelled.remaining == D("2.00000001")


def test_a_dead_letter_of_a_fill_raises_fs098_and_the_ledger_repairs_the_position(
    run: Run,
) -> None:
    for action in ("order", "die", "trade"):
        run.do(run.act(action))
    run.do(run.settle())
    assert not run.portfolio.positions
    assert [alert.code for alert in run.alerts if alert.code] == ["FS098"]
    run.do(run.act("reload"))
    run.check()


def test_a_dead_letter_that_is_replayed_counts_nothing_twice(run: Run) -> None:
    for action in ("order", "die", "trade"):
        run.do(run.act(action))
    run.do(run.settle())
    run.do(run.act("reload"))
    (letter,) = run.engine.dead_letters.list()
    run.engine.replay(letter.number)
    assert run.engine.wait_drained(TIMEOUT_S, Priority.P0)
    run.check()


def test_a_fill_in_the_lane_keeps_the_venues_cash_away(run: Run) -> None:
    """The venue's cash has the fill already: it would count twice."""
    run.do(run.act("order"))
    run.do(run.act("block"))
    run.do(run.act("trade"))
    began = run.positions.reading_began()
    run.positions.account_read(began, run.venue.cash, {})
    assert run.portfolio.cash == CASH
    run.finish()


def test_after_the_stop_the_final_reconciliation_is_in_the_portfolio(run: Run) -> None:
    run.do(run.act("order"))
    run.do(run.settle())
    run.do(asyncio.to_thread(run.engine.stop))
    run.do(run.act("trade"))
    assert not run.portfolio.positions
    run.do(run.positions.reload(run.database, run.venue, after_stop=True))
    assert run.portfolio.positions[SYMBOL].quantity == 1
    assert run.portfolio.cash == run.venue.cash


def test_the_remainder_of_fills_that_arrive_before_their_order(run: Run) -> None:
    """A fill may be reported before the acknowledgement: both count with it."""

    async def trade(order_id: str) -> None:
        for quantity in ("1", "0.5"):
            run.venue.trade(order_id, D(quantity), D(100))
            await run.kit.reconciler.handle_report(run.venue.trades[-1])

    run.venue.meanwhile = trade
    run.do(run.act("order"))
    run.finish()
    applied = [e for e in run.kit.changes if isinstance(e, FillApplied) and e.counted]
    assert [each.remaining for each in applied] == [D("2.00000001"), D("1.50000001")]
    assert all(isinstance(each.intent, IntentRef) for each in applied)


def test_an_intent_that_is_unknown_to_the_tracker_is_waited_for() -> None:
    """A fill may come before the submission returns."""

    async def wait() -> Decimal:
        tracker, intent = IntentTracker(), uuid7()
        tracker.filled(intent, D(2))
        result = Mock(intent_id=intent, attempt_id=uuid7())
        return (await tracker.wait(result, D(2), 1.0)).filled

    assert asyncio.run(wait()) == 2
