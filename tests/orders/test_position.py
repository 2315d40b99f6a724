"""The arithmetic of positions and the ids of signals, held against laws they do not know of."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from uuid import NAMESPACE_OID, uuid5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.domain import Fill, Side
from qts.orders import signal_id_for
from qts.orders.ledger_values import PositionState, apply_fills

AT = datetime(2026, 1, 2, tzinfo=UTC)


def fill(side: str, quantity: str, price: str, n: int = 0, fee: str = "0") -> Fill:
    return Fill(
        trade_id=str(n),
        broker_order_id="1",
        symbol="X",
        side=Side(side),
        quantity=Decimal(quantity),
        price=Decimal(price),
        fee=Decimal(fee),
        at=AT + timedelta(seconds=n),
    )


amounts = st.decimals("0.00000001", "1000", places=8)
prices = st.decimals("0.01", "200000", places=2)
fills = st.lists(
    st.builds(
        lambda side, quantity, price, fee: fill(side, str(quantity), str(price), fee=str(fee)),
        st.sampled_from(["BUY", "SELL"]),
        amounts,
        prices,
        st.decimals("0", "10", places=4),
    ),
    max_size=30,
)


@pytest.mark.parametrize(
    ("trades", "quantity", "average", "realised"),
    [
        ([("BUY", "1", "100")], "1", "100", "0"),
        ([("BUY", "1", "100"), ("BUY", "1", "200")], "2", "150", "0"),
        ([("BUY", "2", "100"), ("SELL", "1", "130")], "1", "100", "30"),
        ([("BUY", "2", "100"), ("SELL", "2", "90")], "0", "0", "-20"),
        ([("BUY", "1", "100"), ("SELL", "3", "130")], "-2", "130", "30"),
        ([("SELL", "2", "100"), ("BUY", "1", "90")], "-1", "100", "10"),
        ([("SELL", "1", "100"), ("BUY", "3", "90")], "2", "90", "10"),
    ],
)
def test_known_cases(
    trades: list[tuple[str, str, str]], quantity: str, average: str, realised: str
) -> None:
    book, _ = apply_fills([fill(*trade, n=n) for n, trade in enumerate(trades)])
    assert (book.quantity, book.average_price, book.realised_pnl) == (
        Decimal(quantity),
        Decimal(average),
        Decimal(realised),
    )


@given(fills)
def test_quantity_and_fees_are_plain_sums(trades: list[Fill]) -> None:
    book, _ = apply_fills(trades)
    assert book.quantity == sum((t.quantity * t.side.sign for t in trades), Decimal(0))
    assert book.fees == sum((t.fee for t in trades), Decimal(0))


@given(fills)
def test_money_paid_is_profit_and_what_is_held(trades: list[Fill]) -> None:
    """Cash that came in = realised profit - cost of what is still held, whatever the path."""
    book, _ = apply_fills(trades)
    cash = sum(
        (-Fraction(t.quantity) * t.side.sign * Fraction(t.price) for t in trades), Fraction()
    )
    told = Fraction(book.realised_pnl) - Fraction(book.quantity) * Fraction(book.average_price)
    assert abs(cash - told) < Fraction(1, 10**9)  # averages are cut at 18 places


@given(fills)
def test_flat_is_flat(trades: list[Fill]) -> None:
    book, gains = apply_fills(trades)
    assert (book.quantity == 0) == (book.opened_at is None)
    assert book.quantity != 0 or book.average_price == 0
    assert sum(gains, Decimal(0)) == book.realised_pnl


@given(fills, st.integers(0, 30))
def test_going_on_is_the_same_as_starting_over(trades: list[Fill], cut: int) -> None:
    before, _ = apply_fills(trades[:cut])
    after, _ = apply_fills(trades[cut:], before)
    assert after == apply_fills(trades)[0]
    assert PositionState() == apply_fills([])[0]


@given(
    key=st.text(max_size=20),
    symbol=st.text(max_size=20),
    side=st.sampled_from(Side),
    at=st.datetimes(timezones=st.sampled_from((UTC, timezone(timedelta(hours=9))))),
    leg=st.text(max_size=5),
)
def test_the_id_of_a_signal_is_a_uuid5(
    key: str, symbol: str, side: Side, at: datetime, leg: str
) -> None:
    name = "\x1f".join((key, symbol, side, at.isoformat(), leg))
    found = signal_id_for(key, symbol, side, at, leg)
    assert found == uuid5(NAMESPACE_OID, name)
    assert found.version == 5
