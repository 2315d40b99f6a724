"""Fills at KIS, made from what is seen of an order: each time its filled quantity has grown.

KIS numbers no fills. It tells of each on the stream, at most once or twice or never, and sums
them up in its list of orders. So the list decides, and what was seen in it is written down:

    seen    4 filled for 280,000 ──▶ step 4 ──▶ fill ...-4, 4 at 70,000
    seen   10 filled for 700,600 ──▶ step 10 ─▶ fill ...-10, 6 at 70,100

The steps are in PostgreSQL before anybody hears of a fill, so the same fill has the same name in
this life and the next, from the stream and from polling.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import ROUND_FLOOR, Decimal

from qts.brokers.kis_codec import KisOrderRow
from qts.database import Database, Row
from qts.domain import FeeSchedule, Fill, Side

_LOCK = int.from_bytes(b"kis step")  # one writer of steps at a time
_GROWN = """
    INSERT INTO kis_step (account, order_id, filled, amount, symbol, side, seen_at)
    SELECT $1, $2, $3, $4, $5, $6, $7
    WHERE NOT EXISTS (
        SELECT 1 FROM kis_step WHERE account = $1 AND order_id = $2 AND filled >= $3
    )
"""
_STEPS = """
    SELECT step.*,
        step.filled - coalesce(before.filled, 0) AS quantity,
        step.amount - coalesce(before.amount, 0) AS paid
    FROM kis_step AS step LEFT JOIN LATERAL (
        SELECT filled, amount FROM kis_step
        WHERE account = step.account AND order_id = step.order_id AND filled < step.filled
        ORDER BY filled DESC LIMIT 1
    ) AS before ON true
    WHERE step.account = $1
"""


class KisFillStore:
    """Of one account."""

    def __init__(self, database: Database, account: str, costs: FeeSchedule) -> None:
        self._database = database
        self._account = account
        self._costs = costs
        self._reached: dict[str, Decimal] = {}

    async def take(self, rows: Sequence[KisOrderRow], at: datetime) -> list[Fill]:
        """Write down what has grown; the fills that we did not know."""
        grown = [row for row in rows if row.order.filled > self.reached(row.order.broker_order_id)]
        if not grown:
            return []
        names = [row.order.broker_order_id for row in grown]
        async with self._database.transaction() as tx:
            await tx.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
            for row in grown:
                order = row.order
                await tx.execute(
                    _GROWN, self._account, order.broker_order_id, order.filled, row.amount,
                    order.symbol, order.side, at,
                )  # fmt: skip
            steps = await tx.fetch(
                _STEPS + "AND step.order_id = ANY($2) ORDER BY step.seen_at, step.filled",
                self._account,
                names,
            )
        fills = [
            self._fill(step) for step in steps if step["filled"] > self.reached(step["order_id"])
        ]
        for step in steps:
            self._reached[step["order_id"]] = max(step["filled"], self.reached(step["order_id"]))
        return fills

    async def since(self, moment: datetime) -> list[Fill]:
        steps = await self._database.fetch(
            _STEPS + "AND step.seen_at >= $2 ORDER BY step.seen_at, step.order_id, step.filled",
            self._account,
            moment,
        )
        return [self._fill(step) for step in steps]

    def reached(self, order_id: str) -> Decimal:
        """How far the order was filled as far as we know."""
        return self._reached.get(order_id, Decimal(0))

    def _fill(self, step: Row) -> Fill:
        side, quantity, paid = Side(step["side"]), step["quantity"], step["paid"]
        return Fill(
            trade_id=f"{step['order_id']}-{step['filled']:.0f}",
            broker_order_id=step["order_id"],
            symbol=step["symbol"],
            side=side,
            quantity=quantity,
            # Several trades may stand behind a step; then this is their average.
            price=price_of_one(paid, quantity),
            fee=self._costs.of(side, paid).quantize(Decimal(1), ROUND_FLOOR),
            at=step["seen_at"],
        )


def price_of_one(paid: Decimal, quantity: Decimal) -> Decimal:
    """To eight places: three for 200,000 won have no price with an end."""
    return round(paid / quantity, 8)
