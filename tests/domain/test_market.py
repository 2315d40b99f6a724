"""Fees of a fill, and the lengths of bars."""

from __future__ import annotations

from decimal import Decimal

from qts.domain import FeeSchedule, Side, Timeframe


def test_sales_are_taxed_and_purchases_are_not() -> None:
    fees = FeeSchedule(fee=Decimal("0.001"), sale_tax=Decimal("0.002"))
    assert fees.of(Side.BUY, Decimal(1000)) == 1
    assert fees.of(Side.SELL, Decimal(1000)) == 3


def test_timeframes_divide_each_other_and_the_day() -> None:
    lengths = [Timeframe(text).seconds for text in ("1s", "1m", "3m", "5m", "15m", "1h", "1d")]
    assert lengths == sorted(lengths) == [1, 60, 180, 300, 900, 3600, 86_400]
    assert len(lengths) == len(Timeframe)
    assert all(86_400 % length == 0 for length in lengths)
