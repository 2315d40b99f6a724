"""Plain market orders, their fills and trades as rows, and what is made of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from operator import itemgetter

from qts.backtest.late_rows import LateRows
from qts.backtest.performance import OpenTrade, Trade
from qts.domain import Fill, IntentType, OrderType, Side
from qts.orders import signal_id_for
from qts.risk import OrderProposal

# Order number, symbol, whether it is an entry, quantity, price, fee and time.
FillRow = tuple[int, str, bool, Decimal, Decimal, Decimal, float]
TradeRow = tuple[FillRow, FillRow, str]  # entry, exit and strategy
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ZERO = Decimal(0)


def side_of(is_entry: bool) -> Side:
    return Side.BUY if is_entry else Side.SELL


def intent_of(is_entry: bool) -> IntentType:
    return IntentType.ENTRY if is_entry else IntentType.EXIT_SIGNAL


def nanoseconds(at: float) -> int:
    return round(at * 1e9)


def make_fill(
    number: int,
    symbol: str,
    is_entry: bool,
    quantity: Decimal,
    price: Decimal,
    fee: Decimal,
    at: float,
) -> Fill:
    """Return the first fill of an order."""
    return Fill(
        trade_id=f"B{number}.1",
        broker_order_id=f"B{number}",
        symbol=symbol,
        side=side_of(is_entry),
        quantity=quantity,
        price=price,
        fee=fee,
        at=_EPOCH + timedelta(microseconds=nanoseconds(at) // 1000),
    )


def make_trade(entry: FillRow, end: FillRow, key: str) -> Trade:
    """Return the trade of two fills, given as rows."""
    trade = OpenTrade(key)
    trade.add(make_fill(*entry), IntentType.ENTRY)
    trade.add(make_fill(*end), IntentType.EXIT_SIGNAL)
    return trade.to_trade()


def make_proposal(
    key: str,
    ttl_s: float,
    symbol: str,
    is_entry: bool,
    quantity: Decimal,
    at: float,
    reason: str,
) -> OrderProposal:
    """Return the proposal of a signal without a size."""
    decided_at = datetime.fromtimestamp(at, UTC)
    side = side_of(is_entry)
    return OrderProposal(
        strategy_key=key,
        symbol=symbol,
        side=side,
        type=OrderType.MARKET,
        quantity=quantity,
        intent_type=intent_of(is_entry),
        signal_id=signal_id_for(key, symbol, side, decided_at),
        decided_at=decided_at,
        expires_at=decided_at + timedelta(seconds=ttl_s),
        reason=reason,
    )


def _profit(row: TradeRow) -> Decimal:
    """Return the profit of the trade, with the arithmetic of `OpenTrade`."""
    (_, _, _, bought, entry, first_fee, _), (_, _, _, sold, end, last_fee, _), _ = row
    entered, exited = _ZERO + bought * entry, _ZERO + sold * end
    return (exited - entered) - (_ZERO + first_fee + last_fee)


def fill_rows() -> LateRows[Fill]:
    columns = {"quantity": itemgetter(3), "price": itemgetter(4), "fee": itemgetter(5)}
    return LateRows(make_fill, columns)


def trade_rows() -> LateRows[Trade]:
    return LateRows(make_trade, {"profit": _profit, "strategy": itemgetter(2)})


def proposal_rows() -> LateRows[OrderProposal]:
    return LateRows(make_proposal, {"strategy_key": itemgetter(0)})
