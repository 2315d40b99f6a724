"""Whether our books are the venue's: orders, fills and positions, compared one by one."""

from __future__ import annotations

from datetime import datetime

import msgspec

from qts.orders.context import ExecutionContext
from qts.orders.queries import SQL
from qts.orders.reconcile import find_mismatches


class ReconcileCheck(msgspec.Struct, frozen=True, kw_only=True):
    orders: bool
    fills: bool
    positions: bool
    differences: tuple[str, ...] = ()  # in words, one for each

    def __bool__(self) -> bool:
        return self.orders and self.fills and self.positions


async def check_reconciled(floor: ExecutionContext, since: datetime) -> ReconcileCheck:
    """Compare with what the venue says now; changes nothing. Ask when nothing is under way."""
    orders = await _orders(floor, since)
    fills = await _fills(floor, since)
    rows = await floor.database.fetch(SQL.positions, floor.broker.name)
    positions = [
        f"{found.symbol}: {found.ours} held here, {found.venue} at the venue"
        for found in find_mismatches(await floor.broker.account(), rows)
    ]
    return ReconcileCheck(
        orders=not orders,
        fills=not fills,
        positions=not positions,
        differences=(*orders, *fills, *positions),
    )


async def _orders(floor: ExecutionContext, since: datetime) -> list[str]:
    there = {order.broker_order_id: order for order in await floor.broker.orders(since)}
    rows = await floor.database.fetch(SQL.find_orders, floor.broker.name, list(there))
    here = {row["broker_order_id"]: row for row in rows}
    wrong = [f"order {name} is not known here" for name in there if name not in here]
    for name, row in here.items():
        ours, theirs = (row["state"], row["filled"]), (there[name].state, there[name].filled)
        if ours != theirs:
            wrong.append(f"order {name}: {ours[0]} {ours[1]} here, {theirs[0]} {theirs[1]} there")
    unknown = await floor.database.fetchval(SQL.count_unsettled, floor.broker.name)
    if unknown:
        wrong.append(f"{unknown} attempts whose outcome is not known")
    missing = await floor.database.fetch(SQL.open_orders, floor.broker.name)
    wrong += [
        f"order {row['broker_order_id']} is open here and not at the venue"
        for row in missing
        if row["broker_order_id"] not in there
    ]
    return wrong


async def _fills(floor: ExecutionContext, since: datetime) -> list[str]:
    there = {fill.trade_id: fill for fill in await floor.broker.fills(since)}
    rows = await floor.database.fetch(SQL.fills_since, floor.broker.name, since, list(there))
    here = {row["trade_id"]: row for row in rows}
    wrong = [f"fill {name} is not known here" for name in there if name not in here]
    for name, row in here.items():
        if name not in there:
            wrong.append(f"fill {name} is not known at the venue")
        elif (row["quantity"], row["price"]) != (there[name].quantity, there[name].price):
            wrong.append(f"fill {name} is another at the venue")
        elif not row["counted"] and row["origin"] != "FOREIGN":
            wrong.append(f"fill {name} is in no position")
    return wrong
