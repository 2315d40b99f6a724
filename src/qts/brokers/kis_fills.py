"""Fills at KIS, derived from the growth of an order's filled quantity.

KIS gives fills no id. Its stream reports each fill once, twice or never; its order list reports
only the total per order. The list is therefore authoritative, and each total is stored as a step:

    list    4 filled for 280,000 ──▶ step 4 ──▶ fill ...-4, 4 at 70,000
    list   10 filled for 700,600 ──▶ step 10 ─▶ fill ...-10, 6 at 70,100

A step is committed to PostgreSQL before its fill is reported, so a fill has the same trade id
after a restart, and from the stream as from polling.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import ROUND_FLOOR, Decimal

from qts.brokers.kis_codec import KisOrderRow
from qts.database import Connection, Database, Row
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
_MOVE = "UPDATE kis_step SET account = $1 WHERE account = $2"


class KisFillStore:
    """Fill steps of one KIS account, in the table `kis_step`.

    `former` is the digest of the number alone, under which steps were stored before an account had
    a key.
    """

    def __init__(
        self, database: Database, account: str, costs: FeeSchedule, former: str = ""
    ) -> None:
        self._database = database
        self._account = account
        self._costs = costs
        self._former = former
        self._reached: dict[str, Decimal] = {}

    async def record(self, rows: Sequence[KisOrderRow], at: datetime) -> list[Fill]:
        """Store the filled quantities that have grown; return the fills not reported before."""
        grown = [row for row in rows if row.order.filled > self.reached(row.order.broker_order_id)]
        if not grown:
            return []
        order_ids = [row.order.broker_order_id for row in grown]
        async with self._database.transaction() as tx:
            await tx.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
            await self._move_former(tx)
            for row in grown:
                order = row.order
                await tx.execute(
                    _GROWN, self._account, order.broker_order_id, order.filled, row.amount,
                    order.symbol, order.side, at,
                )  # fmt: skip
            steps = await tx.fetch(
                _STEPS + "AND step.order_id = ANY($2) ORDER BY step.seen_at, step.filled",
                self._account,
                order_ids,
            )
        fills = [
            self._fill(step) for step in steps if step["filled"] > self.reached(step["order_id"])
        ]
        for step in steps:
            self._reached[step["order_id"]] = max(step["filled"], self.reached(step["order_id"]))
        return fills

    async def _move_former(self, tx: Connection) -> None:
        """Move the steps of the former digest to this account."""
        if self._former:
            await tx.execute(_MOVE, self._account, self._former)

    async def since(self, moment: datetime) -> list[Fill]:
        if self._former:
            async with self._database.transaction() as tx:
                await self._move_former(tx)
            self._former = ""
        steps = await self._database.fetch(
            _STEPS + "AND step.seen_at >= $2 ORDER BY step.seen_at, step.order_id, step.filled",
            self._account,
            moment,
        )
        return [self._fill(step) for step in steps]

    def reached(self, broker_order_id: str) -> Decimal:
        """Return the largest filled quantity recorded for the order, or 0."""
        return self._reached.get(broker_order_id, Decimal(0))

    def _fill(self, step: Row) -> Fill:
        side, quantity, paid = Side(step["side"]), step["quantity"], step["paid"]
        return Fill(
            trade_id=f"{step['order_id']}-{step['filled']:.0f}",
            broker_order_id=step["order_id"],
            symbol=step["symbol"],
            side=side,
            quantity=quantity,
            # A step may cover several trades; the price is then their average.
            price=unit_price(paid, quantity),
            fee=self._costs.of(side, paid).quantize(Decimal(1), ROUND_FLOOR),
            at=step["seen_at"],
        )


def unit_price(paid: Decimal, quantity: Decimal) -> Decimal:
    """Divide to eight decimals, since 200,000 / 3 has no finite decimal form."""
    return round(paid / quantity, 8)
