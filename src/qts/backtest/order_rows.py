"""Orders of a backtest: open ones, and plain market orders, their fills and trades as rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from operator import attrgetter, itemgetter

import msgspec

from qts.backtest.late_values import Column, LateRows
from qts.backtest.performance import OpenTrade, Trade
from qts.domain import Fill, IntentType, OrderSnapshot, OrderType, Side
from qts.orders import signal_id_for
from qts.pipeline import StrategyUpdate, sides_in_flight
from qts.risk import OrderProposal

UpdateTakers = Mapping[str, Callable[[StrategyUpdate], None]]  # by the key of their strategy


class BacktestOrder(msgspec.Struct):
    """Open order at the venue."""

    order_id: str
    proposal: OrderProposal
    at: float
    remaining: Decimal

    def snapshot(self, state: str, reason: str = "") -> OrderSnapshot:
        return OrderSnapshot(
            intent_id=self.order_id,
            symbol=self.proposal.symbol,
            side=self.proposal.side,
            state=state,
            filled=self.proposal.quantity - self.remaining,
            remaining=self.remaining,
            reason=reason,
            price=self.proposal.price,
            strategy_key=self.proposal.strategy_key,
        )

    @property
    def sides(self) -> tuple[Side, ...]:
        """The sides that it occupies while it is in flight: a market order both."""
        return sides_in_flight(self.proposal)


# Order number, symbol, whether it is an entry, quantity, price, fee and time.
FillRow = tuple[int, str, bool, Decimal, Decimal, Decimal, float]
TradeRow = tuple[FillRow | Fill, FillRow, str]  # entry, exit and strategy
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


def make_trade(entry: FillRow | Fill, end: FillRow, key: str) -> Trade:
    """Return the trade of two fills, given as rows."""
    trade = OpenTrade(key)
    first = entry if isinstance(entry, Fill) else make_fill(*entry)
    trade.add(first, IntentType.ENTRY)
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
    first, (_, _, _, sold, end, last_fee, _), _ = row
    if isinstance(first, Fill):
        bought, entry, first_fee = first.quantity, first.price, first.fee
    else:
        _, _, _, bought, entry, first_fee, _ = first
    entered, exited = _ZERO + bought * entry, _ZERO + sold * end
    return (exited - entered) - (_ZERO + first_fee + last_fee)


def fill_rows() -> LateRows[Fill]:
    amount = Column(lambda row: row[4] * row[3], lambda fill: fill.price * fill.quantity)
    return LateRows(make_fill, {"amount": amount, "fee": Column(itemgetter(5), attrgetter("fee"))})


def trade_rows() -> LateRows[Trade]:
    profit = Column(_profit, attrgetter("profit"))
    strategy = Column(itemgetter(2), attrgetter("strategy"))
    return LateRows(make_trade, {"profit": profit, "strategy": strategy})


def proposal_rows() -> LateRows[OrderProposal]:
    key = Column(itemgetter(0), attrgetter("strategy_key"))
    return LateRows(make_proposal, {"strategy_key": key})
