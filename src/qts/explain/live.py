"""Orders of a day, and exits of positions, from the ledger of an account."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from qts.database import Database, Row
from qts.domain import MANUAL, AccountKey, ExitLevels, Fill, Side
from qts.explain.ledger import DayLedger, DayOrder, clean
from qts.pipeline import PortfolioState, SignalOutcome

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
