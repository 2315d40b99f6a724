"""Order of checks and submissions: exits wait for nothing but what sells the same position."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qts.domain import IntentType, OrderType, Side
from qts.orders import SubmitResult
from qts.pipeline import IntentTracker, OrderSubmitter
from qts.pipeline.act import MAX_CHECKS
from qts.pipeline.decision_journal import Entry, GateEntry
from qts.risk import (
    AccountFacts,
    ApprovedOrder,
    Exposure,
    OrderProposal,
    PreTradeGate,
    QuoteSnapshot,
    RiskLimitsConfig,
    RiskSnapshot,
    Switches,
)
from tests.instruments import LISTED

NOW = datetime(2026, 11, 16, 1, tzinfo=UTC)
SYMBOL = "KRW-BTC"
HELD = Decimal(10)


def proposal(kind: IntentType, quantity: int, symbol: str = SYMBOL) -> OrderProposal:
    return OrderProposal(
        strategy_key="test",
        symbol=symbol,
        side=Side.SELL if kind.is_exit else Side.BUY,
        type=OrderType.MARKET,
        quantity=Decimal(quantity),
        intent_type=kind,
        signal_id=uuid4(),
        decided_at=NOW,
        expires_at=NOW + timedelta(seconds=5),
    )


class Book:
    """Holds ten of every symbol; counts what is on its way out. `hangs` blocks entries."""

    def __init__(self) -> None:
        self.sent: list[OrderProposal] = []
        self.hangs = asyncio.Event()
        self.hangs.set()
        self.age_ms: float | None = None  # of the facts in memory; None: there are none to compare
        self.held_in_memory = HELD
        self.reads: list[bool] = []  # whether fresh
        self.changes = 0  # submissions for which the facts have changed
        self.journal: list[Entry] = []
        self.submitter = OrderSubmitter(
            PreTradeGate(RiskLimitsConfig().exact),
            self,
            self.read,
            IntentTracker(),
            lambda _proposal, _submitted: None,
            self.journal.append,
        )

    async def read(self, proposal: OrderProposal, *, fresh: bool) -> RiskSnapshot:
        self.reads.append(fresh)
        held = HELD if fresh else self.held_in_memory
        pending = sum(
            (s.quantity for s in self.sent if (s.symbol, s.side) == (proposal.symbol, Side.SELL)),
            Decimal(0),
        )
        await asyncio.sleep(0)  # another order may be checked meanwhile
        if not proposal.intent_type.is_exit:
            await self.hangs.wait()
        exposure = Exposure(
            position=held,
            pending_buy=Decimal(0),
            pending_sell=pending,
            symbol_value=held * 1000,
            total_value=held * 1000,
            open_symbols=1,
            cash=Decimal(10**8),
            equity=Decimal(10**8),
            daily_pnl=Decimal(0),
            orders_today=10**9,  # used up, as the rate is: exits are exempt from both
            orders_last_minute=10**9,
            symbol_unknown=1,
        )
        price = Decimal(10_000)  # one is above the least value of an order
        return RiskSnapshot(
            instrument=LISTED[proposal.symbol],
            market=QuoteSnapshot(last=price, bid=price, ask=price, age_ms=1.0),
            exposure=exposure,
            switches=Switches(
                account_enabled=True,
                strategy_enabled=True,
                market_active=False,
                frozen=False,
                reconciled=True,
                session_open=True,
                safety="FAIL",
            ),
            now=NOW,
            facts=None if self.age_ms is None else self._facts(held, pending, fresh),
        )

    def _facts(self, held: Decimal, pending: Decimal, fresh: bool) -> AccountFacts:
        return AccountFacts(
            position=held,
            pending_buy=Decimal(0),
            pending_sell=pending,
            held=held,
            pending=pending,
            pending_orders=len(self.sent),
            age_ms=0.0 if fresh else self.age_ms or 0.0,
        )

    async def submit(self, approved: ApprovedOrder) -> SubmitResult:
        await asyncio.sleep(0)
        if approved.facts is not None and self.changes:
            self.changes -= 1
            return SubmitResult(intent_id=uuid4(), attempt_id=None, is_outdated=True)
        self.sent.append(approved.proposal)
        return SubmitResult(intent_id=uuid4(), attempt_id=uuid4())


async def test_an_exit_does_not_wait_for_entries_that_wait_for_the_database() -> None:
    """Suspended symbol, unknown entry, used-up counts and FAIL do not hold it back either."""
    book = Book()
    book.hangs.clear()
    entries = [
        asyncio.create_task(book.submitter.submit(proposal(IntentType.ENTRY, 1), 0.01))
        for _ in range(5)
    ]
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await book.submitter.submit(proposal(IntentType.EXIT_STOPLOSS, 10), 0.01)
    assert [each.intent_type for each in book.sent] == [IntentType.EXIT_STOPLOSS]
    book.hangs.set()
    await asyncio.wait(entries)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([IntentType.EXIT_STOPLOSS, IntentType.EXIT_SIGNAL]),
            st.integers(1, 10),
            st.sampled_from([None, 0, 5]),
        ),
        max_size=8,
    )
)
def test_concurrent_exits_never_sell_more_than_is_held(
    exits: Sequence[tuple[IntentType, int, int | None]],
) -> None:
    async def run() -> Book:
        book = Book()
        await asyncio.gather(
            *(
                book.submitter.submit(
                    proposal(kind, quantity),
                    0.0,
                    leave=None if leave is None else Decimal(leave),
                )
                for kind, quantity, leave in exits
            )
        )
        return book

    book = asyncio.run(run())
    assert sum((each.quantity for each in book.sent), Decimal(0)) <= HELD
    if exits:
        assert book.sent


EXIT = proposal(IntentType.EXIT_STOPLOSS, 10)


async def test_facts_that_changed_are_read_again_and_every_check_is_journaled() -> None:
    book = Book()
    book.age_ms, book.changes = 0.0, 1
    await book.submitter.submit(EXIT, 0.0)
    assert book.reads == [False, True]
    assert [each.quantity for each in book.sent] == [HELD]
    assert [type(entry) for entry in book.journal] == [GateEntry, GateEntry]


async def test_facts_that_keep_changing_leave_the_order_to_a_worker() -> None:
    book = Book()
    book.age_ms, book.changes = 0.0, 100
    await book.submitter.submit(EXIT, 0.0)
    assert len(book.reads) == MAX_CHECKS
    assert len(book.sent) == 1
    assert book.changes == 100 - (MAX_CHECKS - 1)  # the last one has no facts to compare


@pytest.mark.parametrize(("age_ms", "sent"), [(1.0, 0), (501.0, 1)])
async def test_a_refusal_on_old_facts_is_checked_again(age_ms: float, sent: int) -> None:
    """Another process may have changed the ledger since: here, adopted a holding."""
    book = Book()
    book.age_ms, book.held_in_memory = age_ms, Decimal(0)
    done = await book.submitter.submit(EXIT, 0.0)
    assert len(book.sent) == sent
    assert done.outcome == ("TIMEOUT" if sent else "REJECTED")
    assert bool(book.submitter.refusals) != bool(sent)
