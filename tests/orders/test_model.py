"""Orders beside a venue that fills, cancels, loses answers and news, while we crash and restart.

Whatever happens in whatever order: once the books have been compared, our positions are exactly
what the venue has traded for us, and no intent has become two orders.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from qts.brokers import ExecutionReport
from qts.domain import BrokerOrder, IntentType, ManualClock, OrderState, Secret, Side
from qts.orders import check_reconciled
from qts.outbox import PostgresBus
from qts.venues import RateLimitedError, VenueRejectedError
from tests.orders.examples import Examples, opened
from tests.orders.fake_venue import Venue, lost_reply
from tests.orders.kit import START, STREAMS, OrderKit

EXAMPLES: list[Examples] = []
SYMBOLS = ("KRW-BTC", "KRW-ETH")
FAILURES = {
    "none": None,
    "lost": lost_reply,
    "rejected": lambda _request: VenueRejectedError("no", "no"),
    "throttled": lambda _request: RateLimitedError("429"),
}


class Life(RuleBasedStateMachine):
    named = True

    def __init__(self) -> None:
        super().__init__()
        (examples,) = EXAMPLES
        self.database, self.do = examples.database, examples.do
        examples.begin()
        self.bus = PostgresBus(self.database, STREAMS)
        self.clock = ManualClock(START)
        self.venue = Venue(self.clock, named=self.named)
        self.room = self.begin()
        self.news: list[ExecutionReport] = []  # on its way to us, in no order

    def begin(self) -> OrderKit:
        room = OrderKit(self.database, self.bus, self.venue, self.clock)
        self.do(room.open())
        return room

    @initialize()
    def two_orders_rest(self) -> None:
        for symbol in SYMBOLS:
            self.order(symbol, Side.BUY, 9, "none", False)

    @rule(
        symbol=st.sampled_from(SYMBOLS),
        side=st.sampled_from([Side.BUY, Side.BUY, Side.SELL]),
        quantity=st.integers(1, 9),
        failure=st.sampled_from(["none", "none", "eager", *FAILURES, "wait"]),
        placed=st.booleans(),
    )
    def order(self, symbol: str, side: Side, quantity: int, failure: str, placed: bool) -> None:
        """Submit, and carry out what is due; orders may fail, and a lost one may be placed."""
        kind = IntentType.ENTRY if side is Side.BUY else IntentType.EXIT_SIGNAL
        order = {"symbol": symbol, "side": side, "quantity": Decimal(quantity)}
        self.do(self.room.submit(intent_type=kind, **order))
        if failure == "wait":
            return
        if failure == "eager" and side is Side.BUY:
            self.venue.meanwhile = self.fill_at_once
        script = FAILURES.get(failure)
        if script is not None:
            if failure == "lost" and placed:
                self.venue.after = script
            else:
                self.venue.before = script
        self.do(self.room.work_later())
        self.venue.before = self.venue.after = lambda _request: None
        self.venue.meanwhile = None

    async def fill_at_once(self, order_id: str) -> None:
        """Its fill is here before its name."""
        if self.venue.book[order_id].side is Side.BUY:
            fill = self.venue.trade(order_id, Decimal(1), Decimal(100))
            await self.room.reconciler.handle_report(fill)

    @precondition(lambda self: self.open_orders())
    @rule(data=st.data())
    def trade(self, data: st.DataObject) -> None:
        """Something fills at the venue; the news of it may come late, twice, or never."""
        order = data.draw(st.sampled_from(self.open_orders()))
        most = order.quantity - order.filled
        if order.side is Side.SELL:  # the venue sells only what is there
            most = min(most, self.held(order.symbol))
        if most <= 0:
            return
        quantity = data.draw(st.integers(1, int(most)))
        price = Decimal(data.draw(st.integers(50, 150)))
        self.news.append(self.venue.trade(order.broker_order_id, Decimal(quantity), price))
        self.news.append(self.venue.book[order.broker_order_id])

    @precondition(lambda self: self.open_orders())
    @rule(data=st.data())
    def cancelled(self, data: st.DataObject) -> None:
        """The venue ends an order by itself."""
        order = data.draw(st.sampled_from(self.open_orders()))
        self.do(self.venue.cancel(order.broker_order_id))
        self.news.append(self.venue.book[order.broker_order_id])

    @precondition(lambda self: self.news)
    @rule(data=st.data(), again=st.booleans())
    def hear(self, data: st.DataObject, again: bool) -> None:
        """Any of the news, once or twice."""
        notice = data.draw(st.sampled_from(self.news))
        if not again:
            self.news.remove(notice)
        self.do(self.room.reconciler.handle_report(notice))

    @rule(data=st.data(), what=st.sampled_from(["cancel", "crash", "compare", "work", 1, 10, 70]))
    def now_and_then(self, data: st.DataObject, what: str | int) -> None:
        if what == "cancel":
            rows = self.do(self.database.fetch("SELECT id FROM order_intent ORDER BY created_at"))
            self.do(self.room.desk.cancel(data.draw(st.sampled_from([row[0] for row in rows]))))
        elif what == "crash":
            self.crash_and_restart()
        elif what == "compare":
            self.do(self.room.reconciler.reconcile_now())
            self.positions_are_exact()
        elif what == "work":
            self.do(self.room.work_later())
        else:
            self.do(self.clock.advance(float(what)))

    def crash_and_restart(self) -> None:
        """News on their way are lost; somebody may have been in the middle of sending."""
        self.news.clear()
        self.do(
            self.database.execute(
                "UPDATE order_attempt SET status = 'SENT', sent_at = $1 WHERE id = "
                "(SELECT id FROM order_attempt WHERE status = 'PREPARED' LIMIT 1)",
                self.clock.now(),
            )
        )
        self.room = self.begin()

    @invariant()
    def no_intent_is_two_orders(self) -> None:
        rows = self.do(
            self.database.fetch(
                "SELECT a.order_intent_id, a.identifier, i.quantity FROM order_attempt a "
                "JOIN order_intent i ON i.id = a.order_intent_id"
            )
        )
        wanted = {row["order_intent_id"]: row["quantity"] for row in rows}
        placed: dict[Any, int] = {}
        for row in rows:
            times = self.venue.orders_of([row["identifier"]])
            placed[row["order_intent_id"]] = placed.get(row["order_intent_id"], 0) + times
        assert all(times <= 1 for times in placed.values())
        assert len(self.venue.placed) == sum(placed.values())
        assert sum(fill.quantity for fill in self.venue.trades) <= sum(wanted.values())

    def teardown(self) -> None:
        try:
            self.everything_is_found_in_the_end()
        finally:
            self.do(self.bus.close())

    def everything_is_found_in_the_end(self) -> None:
        for _ in range(2):  # the second look finds nothing left
            self.do(self.clock.advance(70))
            self.do(self.room.work_later())
            self.do(self.room.reconciler.reconcile_now())
        self.positions_are_exact()
        found = self.do(check_reconciled(self.room.context, START))
        ambiguous = self.do(
            self.database.fetchval("SELECT count(*) FROM order_attempt WHERE needs_person")
        )
        assert found or ambiguous, found.differences

    def positions_are_exact(self) -> None:
        """But for fills of orders that a person has yet to recognise, or that wait to be found."""
        rows = self.do(self.database.fetch("SELECT symbol, quantity FROM position"))
        ours = {row["symbol"]: row["quantity"] for row in rows if row["quantity"]}
        rows = self.do(
            self.database.fetch("SELECT broker_order_id FROM broker_order WHERE origin = 'FOREIGN'")
        )
        unknown = {row["broker_order_id"] for row in rows}
        model: dict[str, Decimal] = {}
        for fill in self.venue.trades:
            if fill.broker_order_id not in unknown:
                total = model.get(fill.symbol, Decimal(0)) + fill.quantity * fill.side.sign
                model[fill.symbol] = total
        assert ours == {symbol: held for symbol, held in model.items() if held}
        if self.named:
            assert not unknown

    def open_orders(self) -> list[BrokerOrder]:
        return [order for order in self.venue.book.values() if order.state is OrderState.OPEN]

    def held(self, symbol: str) -> Decimal:
        trades = (fill for fill in self.venue.trades if fill.symbol == symbol)
        return sum((fill.quantity * fill.side.sign for fill in trades), Decimal(0))


class NamelessLife(Life):
    """A venue that does not keep our identifiers."""

    named = False


@pytest.fixture
def examples(database_url: Secret) -> Iterator[None]:
    with opened(database_url) as examples:
        EXAMPLES[:] = [examples]
        yield
    EXAMPLES.clear()


STEPS = settings(
    max_examples=10,
    stateful_step_count=30,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize("life", [Life, NamelessLife])
def test_positions_are_exact_whatever_happens(life: type[Life]) -> None:
    run_state_machine_as_test(life, settings=STEPS)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize("life", [Life, NamelessLife])
def test_positions_are_exact_over_many_lives(life: type[Life]) -> None:
    many = settings(STEPS, max_examples=300, stateful_step_count=60)
    run_state_machine_as_test(life, settings=many)
