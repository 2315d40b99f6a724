"""Cash of the venue, taken at every reconciliation: deposits arrive, no fill counts twice."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from qts.domain import Account, IntentType, ManualClock, OrderState, Secret, Side
from qts.outbox import PostgresBus
from qts.pipeline import Portfolio
from qts.pipeline.position_sync import PositionSync
from tests.instruments import LISTED
from tests.orders.examples import Examples, opened
from tests.orders.fake_venue import CASH, Venue, cost
from tests.orders.kit import START, STREAMS, SYMBOL, OrderKit

ACTION = st.sampled_from(["buy", "sell", "hear", "hear", "deposit", "order"])
ACTIONS = st.lists(ACTION, max_size=4)


class Account100:
    """A position of 100, a resting bid and, perhaps, a resting offer; the venue reports late.

    `before` and `after` happen while the account is read: before and after the venue's snapshot.
    """

    def __init__(self, examples: Examples) -> None:
        self._examples = examples
        self.do = examples.do
        examples.begin()
        clock = ManualClock(START)
        self.venue = Venue(clock)
        self.portfolio = Portfolio(clock, LISTED)
        self.sync = PositionSync(self.portfolio, Mock(parked=set()), {}, clock)
        bus = PostgresBus(examples.database, STREAMS)
        self.kit = OrderKit(examples.database, bus, self.venue, clock, self.sync)
        self.do(self.kit.open())
        self.deposits = [Decimal(0)]  # sums
        self.before: list[str] = []
        self.after: list[str] = []
        self._read = self.venue.account
        self.venue.account = self._read_while_trading  # type: ignore[method-assign]
        self.do(self.kit.order(quantity=Decimal(200)))
        self._trade("V1", 100)
        self.do(self.kit.reconciler.handle_report(self.venue.trades[0]))
        self.do(self.sync.load(examples.database, self.venue))
        self.applied = 1

    async def act(self, action: str) -> None:
        offers = [o.broker_order_id for o in self.venue.book.values() if o.side is Side.SELL]
        if action == "buy":
            self._trade("V1", 3)
        elif action == "sell" and offers:
            self._trade(offers[0], 3)
        elif action == "hear" and self.applied < len(self.venue.trades):
            report = self.venue.trades[self.applied]
            self.applied += 1
            await self.kit.reconciler.handle_report(report)
        elif action == "deposit":
            self.venue.deposits += 1_000_000 + len(self.deposits)
            self.deposits.append(self.venue.deposits)
        elif action == "order" and not offers:
            exit_signal = {"side": Side.SELL, "intent_type": IntentType.EXIT_SIGNAL}
            await self.kit.submit(quantity=Decimal(3), **exit_signal)
            await self.kit.work()

    def _trade(self, order_id: str, quantity: int) -> None:
        order = self.venue.book[order_id]
        if order.state is OrderState.OPEN and order.filled + quantity <= order.quantity:
            self.venue.trade(order_id, Decimal(quantity), Decimal(100 + len(self.venue.trades)))

    async def _read_while_trading(self) -> Account:
        before, self.before, after, self.after = self.before, [], self.after, []
        for action in before:
            await self.act(action)
        account = await self._read()
        for action in after:
            await self.act(action)
        return account

    def reconcile(self, before: list[str], after: list[str]) -> None:
        self.before, self.after = before, after
        self.do(self.kit.reconciler.reconcile_now())
        rows = self.do(self._examples.database.fetch("SELECT trade_id FROM fill WHERE counted"))
        counted = {row["trade_id"] for row in rows}
        # Fills are heard in order; a reconciliation has read some of them itself.
        while self.applied < len(self.venue.trades) and (
            self.venue.trades[self.applied].trade_id in counted
        ):
            self.applied += 1
        self.check(counted)

    def check(self, counted: set[str]) -> None:
        """Every fill counts once, and of the deposits the first so many."""
        fills = sum((cost(f) for f in self.venue.trades if f.trade_id in counted), Decimal(0))
        assert self.portfolio.cash in [CASH - fills + each for each in self.deposits]

    def finish(self) -> None:
        """Nothing is pending: one reading is enough."""
        for order in list(self.venue.book.values()):
            if order.state is OrderState.OPEN:
                self.do(self.venue.cancel(order.broker_order_id))
        self.reconcile([], [])
        self.reconcile([], [])
        assert self.portfolio.cash == self.venue.cash


@pytest.fixture
def examples(database_url: Secret) -> Iterator[Examples]:
    with opened(database_url) as examples:
        yield examples


def run(examples: Examples, rounds: list[tuple[list[str], list[str], list[str]]]) -> None:
    account = Account100(examples)
    for between, before, after in rounds:
        for action in between:
            account.do(account.act(action))
        account.reconcile(before, after)
    account.finish()


@settings(
    max_examples=40,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(rounds=st.lists(st.tuples(ACTIONS, ACTIONS, ACTIONS), min_size=1, max_size=3))
def test_every_fill_counts_once(
    examples: Examples, rounds: list[tuple[list[str], list[str], list[str]]]
) -> None:
    run(examples, rounds)


def test_a_deposit_reaches_the_limits_at_the_next_reconciliation(examples: Examples) -> None:
    account = Account100(examples)
    before = account.portfolio.cash
    account.do(account.act("deposit"))
    account.reconcile([], [])
    assert account.portfolio.cash == before + 1_000_000 + 1
    assert account.portfolio.positions[SYMBOL].quantity == 100


@pytest.mark.parametrize(
    ("broken", "rounds"),
    [
        ("mark", [([], [], ["order", "buy", "sell", "hear", "hear"])]),
        ("sides", [(["order"], ["buy", "sell"], [])]),
    ],
)
def test_the_property_can_fail(
    examples: Examples, monkeypatch: pytest.MonkeyPatch, broken: str, rounds: Any
) -> None:
    """Without the mark, or without the check of both sides, fills that cancel out count wrong."""
    if broken == "mark":
        # A mark that no fill changes.
        fixed = property(lambda _sync: 0, lambda _sync, _fills: None)
        monkeypatch.setattr(PositionSync, "_fills", fixed, raising=False)
    else:

        async def never(_self: Any) -> bool:
            return False

        monkeypatch.setattr("qts.orders.Reconciler._trades_both_ways", never)
    with pytest.raises(AssertionError):
        run(examples, rounds)


def test_the_same_cash_is_no_change() -> None:
    """A change is journaled; a quiet run journals nothing."""
    portfolio = Portfolio(ManualClock(), LISTED)
    before = portfolio._state
    portfolio.set_cash(Decimal(0))
    assert portfolio._state is before
    portfolio.set_cash(Decimal(5))
    assert (portfolio.cash, portfolio._store.state.number) == (Decimal(5), 1)
