"""Comparison of the ledger with the venue: orders, fills and positions, one by one."""

from __future__ import annotations

from datetime import datetime

import msgspec

from qts.orders.context import ExecutionContext
from qts.orders.holdings import load_baseline
from qts.orders.position import find_mismatches
from qts.orders.queries import SQL


class ReconcileCheck(msgspec.Struct, frozen=True, kw_only=True):
    orders: bool
    fills: bool
    positions: bool
    differences: tuple[str, ...] = ()  # one text each

    def __bool__(self) -> bool:
        return self.orders and self.fills and self.positions


async def check_reconciled(context: ExecutionContext, since: datetime) -> ReconcileCheck:
    """Compare and change nothing; call it when nothing is in flight."""
    orders = await _orders(context, since)
    fills = await _fills(context, since)
    rows = await context.database.fetch(SQL.positions, *context.broker.key)
    baseline = await load_baseline(context.database, context.broker.key)
    positions = [
        f"{found.symbol}: {found.ours} in the ledger, {found.venue} at the venue"
        for found in find_mismatches(await context.broker.account(), rows, baseline)
    ]
    return ReconcileCheck(
        orders=not orders,
        fills=not fills,
        positions=not positions,
        differences=(*orders, *fills, *positions),
    )


async def _orders(context: ExecutionContext, since: datetime) -> list[str]:
    there = {order.broker_order_id: order for order in await context.broker.orders(since)}
    rows = await context.database.fetch(SQL.find_orders, *context.broker.key, list(there))
    here = {row["broker_order_id"]: row for row in rows}
    wrong = [f"order {name} is not in the ledger" for name in there if name not in here]
    for name, row in here.items():
        ours, theirs = (row["state"], row["filled"]), (there[name].state, there[name].filled)
        if ours != theirs:
            wrong.append(
                f"order {name}: {ours[0]} {ours[1]} in the ledger,"
                f" {theirs[0]} {theirs[1]} at the venue"
            )
    unknown = await context.database.fetchval(SQL.count_unsettled, *context.broker.key)
    if unknown:
        wrong.append(f"{unknown} attempts with an unknown outcome")
    missing = await context.database.fetch(SQL.open_orders, *context.broker.key)
    wrong += [
        f"order {row['broker_order_id']} is open in the ledger and not at the venue"
        for row in missing
        if row["broker_order_id"] not in there
    ]
    return wrong


async def _fills(context: ExecutionContext, since: datetime) -> list[str]:
    there = {fill.trade_id: fill for fill in await context.broker.fills(since)}
    rows = await context.database.fetch(SQL.fills_since, *context.broker.key, since, list(there))
    here = {row["trade_id"]: row for row in rows}
    wrong = [f"fill {name} is not in the ledger" for name in there if name not in here]
    for name, row in here.items():
        if name not in there:
            wrong.append(f"fill {name} is not at the venue")
        elif (row["quantity"], row["price"]) != (there[name].quantity, there[name].price):
            wrong.append(f"fill {name} differs at the venue")
        elif not row["counted"] and row["origin"] != "FOREIGN":
            wrong.append(f"fill {name} is in no position")
    return wrong
