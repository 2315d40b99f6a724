"""The example strategies run and print their results; the market maker quotes."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from qts.domain import Account, OrderSnapshot, Position, Side, Tick
from qts.strategies import Cancel, Replace, Signal, View, load_strategy

EXAMPLES = Path(__file__).parents[2] / "examples/strategies"


@pytest.mark.parametrize(
    ("name", "last"),
    [("buy_the_dip", "2 trades, +0.008%"), ("channel_step", "the same decisions")],
)
def test_the_example_runs(name: str, last: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == last


def quotes(bid: float, ask: float, *orders: OrderSnapshot) -> list[tuple[str, Side, Decimal]]:
    """Return what the market maker does about a tick, while it holds a little."""
    symbol, now = "KRW-BTC", datetime(2026, 11, 16, tzinfo=UTC)
    held = {symbol: Position(symbol, Decimal("0.001"), Decimal(100))}
    account = Account(cash=Decimal(0), holdings=())
    view = View(now, {}, held, account, Decimal(0), orders=orders)
    maker = load_strategy(f"{EXAMPLES / 'market_maker.py'}:MarketMaker").from_params({})
    found: list[tuple[str, Side, Decimal]] = []
    for each in maker.on_tick(Tick(symbol, bid, 1, bid, ask, now.timestamp()), view):
        if isinstance(each, Signal):
            found.append(("new", each.side, each.price or Decimal(0)))
        elif isinstance(each, Replace):
            found.append(("replace", each.order.side, each.price or Decimal(0)))
        elif isinstance(each, Cancel):
            found.append(("cancel", each.order.side, Decimal(0)))
    return found


def resting(side: Side, price: int) -> OrderSnapshot:
    return OrderSnapshot(
        intent_id=f"{side} {price}",
        symbol="KRW-BTC",
        side=side,
        state="ACKED",
        filled=Decimal(0),
        remaining=Decimal(1),
        price=Decimal(price),
    )


def test_the_market_maker_quotes_both_sides_and_moves_them() -> None:
    bid, ask = ("new", Side.BUY, Decimal(100)), ("new", Side.SELL, Decimal(102))
    assert quotes(100, 102) == [bid, ask]
    assert quotes(100, 102, resting(Side.BUY, 100), resting(Side.SELL, 102)) == []
    moved = quotes(100, 102, resting(Side.BUY, 99), resting(Side.BUY, 98))
    assert moved == [("replace", Side.BUY, Decimal(100)), ("cancel", Side.BUY, Decimal(0)), ask]


def test_the_market_maker_begins_with_a_purchase_where_no_spread_is_known() -> None:
    """Upbit sends no bid and ask with its prices; the book comes with the first order."""
    assert quotes(100, 100) == [("new", Side.BUY, Decimal(100))]
    assert quotes(100, 100, resting(Side.BUY, 100), resting(Side.SELL, 102)) == []
    assert quotes(0, 0) == []
