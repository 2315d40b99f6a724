"""Orders of one day: read from the ledger of an account, and paired with those of its backtest."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from decimal import Context, Decimal, localcontext
from uuid import UUID

import msgspec

from qts.database import Database, Row
from qts.domain import MANUAL, AccountKey, ExitLevels, Fill, Side
from qts.pipeline import PortfolioState, SignalOutcome

ZERO = Decimal(0)
_PRICE = Decimal("0.00000001")
_DIGITS = 120


def exact() -> AbstractContextManager[Context]:
    """Return a context in which sums and products of stored numbers are exact."""
    return localcontext(prec=_DIGITS)


def clean(value: Decimal) -> Decimal:
    """Return the number without trailing zeros."""
    with exact():
        return Decimal(f"{value.normalize():f}")


def plain(value: Decimal) -> str:
    """Format a number without trailing zeros."""
    return f"{clean(value):,f}"


class DayOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Order with its fills; times are seconds since 1970."""

    strategy: str
    symbol: str
    side: Side
    decided_at: float  # of the tick or bar behind its signal
    reached_at: float  # when the venue had it
    quantity: Decimal
    asked: str = ""  # by the signal; empty: as large as one order may be
    limit: Decimal | None = None
    signal_id: UUID | None = None
    fills: tuple[Fill, ...] = ()
    ended: str = ""  # why it ended without its whole fill, if that is known
    reason: str = ""  # of the signal
    is_earlier: bool = False  # from before the first run

    @property
    def filled(self) -> Decimal:
        return sum((fill.quantity for fill in self.fills), ZERO)

    @property
    def value(self) -> Decimal:
        return sum((fill.quantity * fill.price for fill in self.fills), ZERO)

    @property
    def fees(self) -> Decimal:
        return sum((fill.fee for fill in self.fills), ZERO)

    @property
    def price(self) -> Decimal | None:
        """Average price of its fills."""
        return (self.value / self.filled).quantize(_PRICE) if self.fills else None

    @property
    def traded_at(self) -> float:
        """When it first traded; not before the venue had it, by whatever clock."""
        if not self.fills:
            return self.reached_at
        return max(self.reached_at, min(fill.at for fill in self.fills).timestamp())


class DayLedger(msgspec.Struct, frozen=True, kw_only=True):
    """Orders of a day on one side, and the signals that did not become one."""

    orders: Sequence[DayOrder] = ()
    refused: Sequence[SignalOutcome] = ()

    @property
    def fees(self) -> Decimal:
        return sum((order.fees for order in self.orders), ZERO)

    @property
    def fills(self) -> int:
        return sum(len(order.fills) for order in self.orders)


# Fills of our own orders that count in positions; adopted holdings are no trades.
_FILLS = """
SELECT f.trade_id, f.broker_order_id, f.symbol, f.side, f.quantity, f.price, f.fee, f.traded_at,
       a.order_intent_id
  FROM fill f
  JOIN broker_order o ON o.broker = f.broker AND o.account = f.account
                     AND o.broker_order_id = f.broker_order_id
  JOIN order_attempt a ON a.id = o.order_attempt_id
 WHERE f.broker = $1 AND f.account = $2 AND f.counted AND f.traded_at >= $3 AND f.traded_at < $4
 ORDER BY f.traded_at, f.trade_id
"""
# Orders of the time and those that were filled in it, each with its last attempt.
_ORDERS = """
SELECT i.id, i.signal_id, i.strategy_key, i.symbol, i.side, i.quantity, i.price, i.reason_code,
       s.decided_at, s.reason, a.sent_at, a.error_code
  FROM order_intent i
  JOIN signal s ON s.id = i.signal_id
  LEFT JOIN LATERAL (
        SELECT sent_at, error_code FROM order_attempt
         WHERE order_intent_id = i.id ORDER BY attempt_no DESC LIMIT 1) a ON true
 WHERE i.broker = $1 AND i.account = $2
   AND (i.created_at >= $3 AND i.created_at < $4 OR i.id = ANY ($5::uuid[]))
 ORDER BY i.created_at, i.id
"""
# The exits of the last entry into a position by the strategy that holds it.
_EXITS = """
SELECT a.request_json ->> 'exits'
  FROM order_intent i
  JOIN order_attempt a ON a.order_intent_id = i.id
 WHERE i.broker = $1 AND i.account = $2 AND i.symbol = $3 AND i.strategy_key = $4 AND i.side = $5
   AND i.intent_type = 'ENTRY' AND i.created_at < $6
 ORDER BY i.created_at DESC, a.attempt_no DESC
 LIMIT 1
"""


async def load_exits(
    database: Database, account: AccountKey, opening: PortfolioState, at: datetime
) -> dict[str, ExitLevels]:
    """Return the exits that the positions of an opening account had at its time, by symbol."""
    found = {}
    for symbol, position in opening.positions.items():
        side = Side.BUY if position.quantity > 0 else Side.SELL
        owner = opening.owners.get(symbol, "")
        exits = await database.fetchval(_EXITS, *account, symbol, owner, side, at)
        if exits is not None:
            found[symbol] = msgspec.json.decode(exits, type=ExitLevels)
    return found


async def load_live_ledger(
    database: Database, account: AccountKey, start: datetime, end: datetime
) -> DayLedger:
    """Return the orders and fills of an account from `start` on, before `end`.

    An order of a strategy that was stored and never sent counts as refused.
    """
    fills: defaultdict[UUID, list[Fill]] = defaultdict(list)
    for row in await database.fetch(_FILLS, *account, start, end):
        fills[row["order_intent_id"]].append(_fill(row))
    rows = await database.fetch(_ORDERS, *account, start, end, list(fills))
    sent = [row for row in rows if row["sent_at"] is not None]
    unsent = [row for row in rows if row["sent_at"] is None and row["strategy_key"] != MANUAL]
    return DayLedger(
        orders=[_order(row, fills.get(row["id"], ())) for row in sent],
        refused=[_refused(row) for row in unsent],
    )


def _order(row: Row, fills: Sequence[Fill]) -> DayOrder:
    return DayOrder(
        strategy=row["strategy_key"],
        symbol=row["symbol"],
        side=Side(row["side"]),
        decided_at=row["decided_at"].timestamp(),
        reached_at=row["sent_at"].timestamp(),
        quantity=clean(row["quantity"]),
        limit=None if row["price"] is None else clean(row["price"]),
        signal_id=row["signal_id"],
        fills=tuple(fills),
        ended=row["error_code"] or row["reason_code"],
        reason=row["reason"],
    )


def _refused(row: Row) -> SignalOutcome:
    return SignalOutcome(
        strategy_key=row["strategy_key"],
        symbol=row["symbol"],
        side=Side(row["side"]),
        at=row["decided_at"].timestamp(),
        asked="",
        reason=row["reason_code"] or "not sent",
    )


def _fill(row: Row) -> Fill:
    return Fill(
        trade_id=row["trade_id"],
        broker_order_id=row["broker_order_id"],
        symbol=row["symbol"],
        side=Side(row["side"]),
        quantity=clean(row["quantity"]),
        price=clean(row["price"]),
        fee=clean(row["fee"]),
        at=row["traded_at"],
    )


Pair = tuple[DayOrder | None, DayOrder | None]  # of the run, of the backtest


def pair_orders(
    live: Sequence[DayOrder], backtest: Sequence[DayOrder], tolerance_s: float
) -> list[Pair]:
    """Pair orders of the same signal, else of the same strategy, symbol, side and about the time.

    Returned in the order in which they traded. An order from before the run has no pair.
    """
    by_id = {order.signal_id: order for order in backtest if order.signal_id is not None}
    pairs: list[Pair] = []
    ours, others = (defaultdict[object, list[DayOrder]](list) for _ in range(2))
    paired: set[int] = set()
    pairs += [(order, None) for order in live if order.is_earlier]
    for order in live:
        if order.is_earlier:
            continue
        same = by_id.pop(order.signal_id, None) if order.signal_id is not None else None
        if same is not None and kind_of(same) == kind_of(order):
            pairs.append((order, same))
            paired.add(id(same))
        else:
            ours[kind_of(order)].append(order)
    for order in backtest:
        if id(order) not in paired:
            others[kind_of(order)].append(order)
    for kind in dict.fromkeys((*ours, *others)):
        pairs += _pair_by_time(ours[kind], others[kind], tolerance_s)
    return sorted(pairs, key=_when)


def kind_of(order: DayOrder) -> tuple[str, str, Side]:
    """Return what two orders of a pair have in common."""
    return order.strategy, order.symbol, order.side


def _when(pair: Pair) -> float:
    return min(order.traded_at for order in pair if order is not None)


def _pair_by_time(
    live: list[DayOrder], backtest: list[DayOrder], tolerance_s: float
) -> Iterator[Pair]:
    ours = deque(sorted(live, key=lambda order: order.decided_at))
    theirs = deque(sorted(backtest, key=lambda order: order.decided_at))
    while ours and theirs:
        later_s = ours[0].decided_at - theirs[0].decided_at
        if abs(later_s) <= tolerance_s:
            yield ours.popleft(), theirs.popleft()
        elif later_s < 0:
            yield ours.popleft(), None
        else:
            yield None, theirs.popleft()
    yield from ((order, None) for order in ours)
    yield from ((None, order) for order in theirs)
