"""Upbit orders: the venue's checks before the matching engine, and the JSON of orders."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from qts.simulators.market.markets import CoinMarket
from qts.simulators.market.rules import COIN, moment_of
from qts.simulators.matching import Lifetime, MatchingEngine, Side, SimulatedFill, SimulatedOrder
from qts.simulators.upbit.gateway import UpbitCustomer, UpbitError, amount_of, text

MIN_TOTAL = 5_000 * COIN
_WHOLE_BOOK = 2**80
"""Quantity of an order that gives only an amount to spend."""
_LIFETIMES: dict[str | None, Lifetime] = {
    None: "day", "ioc": "ioc", "fok": "fok", "post_only": "post_only",
}  # fmt: skip

Event = Literal["wait", "trade", "done", "cancel"]


@dataclass(eq=False)
class UpbitOrderEntry:
    customer: UpbitCustomer
    order: SimulatedOrder
    kind: str
    uuid: str
    identifier: str | None
    time_in_force: str | None
    smp_type: str | None
    reserved_fee: int = 0
    paid_fee: int = 0
    trade_uuids: list[str] = field(default_factory=list)
    accepted: dict[str, Any] = field(default_factory=dict)
    """The answer to its request: the order before it matched."""

    @property
    def state(self) -> str:
        if self.order.open:
            return "wait"
        return "cancel" if self.order.cancelled else "done"


Notify = Callable[[UpbitOrderEntry, Event, SimulatedFill | None], None]


class UpbitOrderApi:
    def __init__(self, market: CoinMarket, duplicate_error: str, notify: Notify, seed: int) -> None:
        self._market = market
        self._duplicate_error = duplicate_error
        self._notify = notify
        self._random = random.Random(seed)  # noqa: S311 - the same uuids for the same seed
        self.engine = MatchingEngine(market, COIN)
        self.entries: dict[str, UpbitOrderEntry] = {}
        self._by_order: dict[SimulatedOrder, UpbitOrderEntry] = {}
        self._identifiers: dict[tuple[UpbitCustomer, str], UpbitOrderEntry | None] = {}

    # Requests

    def place(
        self, customer: UpbitCustomer, body: Mapping[str, Any], dry: bool = False
    ) -> UpbitOrderEntry:
        identifier = body.get("identifier")
        if identifier is not None and not dry:
            if (customer, str(identifier)) in self._identifiers:
                raise UpbitError(400, self._duplicate_error, "identifier was used before")
            self._identifiers[customer, str(identifier)] = None  # used up even if it fails
        order = self._order(body)
        entry = UpbitOrderEntry(
            customer,
            order,
            str(body["ord_type"]),
            self._new_uuid(),
            identifier,
            body.get("time_in_force"),
            body.get("smp_type"),
        )
        self._check(entry)
        if not dry:
            self._accept(entry)
        return entry

    def _accept(self, entry: UpbitOrderEntry) -> None:
        order, account = entry.order, entry.customer.account
        side = "bid" if order.side == "buy" else "ask"
        if not account.reserve(order, order.limit or 0):
            raise UpbitError(400, f"insufficient_funds_{side}", "not enough to place the order")
        value = order.amount or (order.limit or 0) * order.quantity // COIN
        entry.reserved_fee = account.fee("buy", value) if order.side == "buy" else 0
        self.entries[entry.uuid] = entry
        self._by_order[order] = entry
        if entry.identifier is not None:
            self._identifiers[entry.customer, entry.identifier] = entry
        entry.accepted = self.as_json(entry)
        self._notify(entry, "wait", None)
        for fill in self.engine.submit(order):
            self._settle(fill)
        account.refresh(order)
        if not order.open and order.cancelled:
            self._notify(entry, "cancel", None)

    def find(
        self, customer: UpbitCustomer, values: Mapping[str, Any], prefix: str = ""
    ) -> UpbitOrderEntry:
        """Find an order by uuid, or else by identifier; raise UpbitError if there is none."""
        order_id, identifier = values.get(f"{prefix}uuid"), values.get(f"{prefix}identifier")
        if order_id is None and identifier is None:
            raise UpbitError(400, "validation_error", "uuid or identifier is needed")
        entry = (
            self.entries.get(str(order_id))
            if order_id is not None
            else self._identifiers.get((customer, str(identifier)))
        )
        if entry is None or entry.customer is not customer:
            raise UpbitError(404, "order_not_found")
        return entry

    def cancel(self, entry: UpbitOrderEntry) -> None:
        if not entry.order.open:
            raise UpbitError(400, "order_not_cancelable", "the order is no longer open")
        self.engine.cancel(entry.order)
        entry.customer.account.refresh(entry.order)
        self._notify(entry, "cancel", None)

    def cancel_and_new(
        self, customer: UpbitCustomer, body: Mapping[str, Any]
    ) -> tuple[UpbitOrderEntry, UpbitOrderEntry]:
        old = self.find(customer, body, "prev_order_")
        volume = body.get("new_volume")
        if volume == "remain_only":
            volume = text(old.order.remaining)
        side = "bid" if old.order.side == "buy" else "ask"
        new = {
            "market": self._market.universe.codes[old.order.index],
            "side": side,
            "ord_type": body.get("new_ord_type"),
            "volume": volume,
            "price": body.get("new_price"),
            "identifier": body.get("new_identifier"),
            "time_in_force": body.get("new_time_in_force"),
        }
        self.cancel(old)
        return old, self.place(customer, {k: v for k, v in new.items() if v is not None})

    def of(self, customer: UpbitCustomer, market: str | None = None) -> list[UpbitOrderEntry]:
        """Return the orders of a customer, newest first."""
        return [
            entry
            for entry in reversed(self.entries.values())
            if entry.customer is customer
            and market in (None, self._market.universe.codes[entry.order.index])
        ]

    # Time

    def on_second(self) -> None:
        for fill in self.engine.step():
            self._settle(fill)

    def _settle(self, fill: SimulatedFill) -> None:
        entry = self._by_order[fill.order]
        account = entry.customer.account
        account.settle(fill)
        account.refresh(fill.order)
        entry.paid_fee += account.fee(fill.order.side, fill.price * fill.quantity // COIN)
        entry.trade_uuids.append(self._new_uuid())
        self._notify(entry, "trade", fill)
        if not fill.order.open and not fill.order.cancelled:
            self._notify(entry, "done", None)

    # Checks

    def _order(self, body: Mapping[str, Any]) -> SimulatedOrder:
        index = self._market.index.get(str(body.get("market", "")))
        if index is None:
            raise UpbitError(404, "market_not_found", f"no market {body.get('market')}")
        side, kind, tif = body.get("side"), body.get("ord_type"), body.get("time_in_force")
        if side not in ("bid", "ask") or tif not in _LIFETIMES:
            raise UpbitError(400, "validation_error", "side or time_in_force is wrong")
        required = {
            ("limit", "bid"): "pv", ("limit", "ask"): "pv", ("price", "bid"): "p",
            ("market", "ask"): "v", ("best", "bid"): "p", ("best", "ask"): "v",
        }.get((str(kind), side))  # fmt: skip
        given = ("p" if "price" in body else "") + ("v" if "volume" in body else "")
        if required is None or given != required:
            raise UpbitError(400, "validation_error", f"{kind} {side}: price or volume is wrong")
        if (kind == "best" and tif not in ("ioc", "fok")) or (
            kind in ("price", "market") and tif is not None
        ):
            raise UpbitError(400, "validation_error", f"{kind} with time_in_force {tif}")
        if tif == "post_only" and (kind != "limit" or "smp_type" in body):
            raise UpbitError(400, "validation_error", "post_only is for limit without smp_type")
        price = amount_of(body["price"], f"invalid_price_{side}") if "p" in required else None
        volume = amount_of(body["volume"], "validation_error") if "v" in required else _WHOLE_BOOK
        limit = price if kind == "limit" else None
        amount = price if kind in ("price", "best") and side == "bid" else None
        lifetime: Lifetime = "ioc" if kind in ("price", "market") else _LIFETIMES[tif]
        number = len(self.entries) + 1
        order_side: Side = "buy" if side == "bid" else "sell"
        now = self._market.time
        return SimulatedOrder(number, index, order_side, volume, limit, lifetime, amount, now)

    def _check(self, entry: UpbitOrderEntry) -> None:
        order = entry.order
        side = "bid" if order.side == "buy" else "ask"
        if order.limit is not None and not self._market.table.is_on(order.limit):
            raise UpbitError(400, f"invalid_price_{side}", "the price is not on a tick")
        price = order.limit or int(self._market.price[order.index])
        total = order.amount or price * order.quantity // COIN
        if total < MIN_TOTAL:
            raise UpbitError(400, f"under_min_total_{side}", "5000 KRW at least")
        if entry.time_in_force == "post_only" and self.engine.would_match(order):
            raise UpbitError(400, f"create_{side}_error", "a post_only order would be filled")

    def _new_uuid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    # JSON

    def as_json(self, entry: UpbitOrderEntry, with_trades: bool = False) -> dict[str, Any]:
        order, account = entry.order, entry.customer.account
        has_volume = order.amount is None
        price = order.amount if order.amount is not None else order.limit
        remaining = order.remaining if order.open else order.quantity - order.filled
        left_fee = max(0, entry.reserved_fee - entry.paid_fee) if order.open else 0
        values: dict[str, Any] = {
            "uuid": entry.uuid,
            "side": "bid" if order.side == "buy" else "ask",
            "ord_type": entry.kind,
            "price": text(price) if price is not None else None,
            "state": entry.state,
            "market": self._market.universe.codes[order.index],
            "created_at": moment_of(order.placed_at).isoformat(),
            "volume": text(order.quantity) if has_volume else None,
            "remaining_volume": text(remaining) if has_volume else "0",
            "prevented_volume": "0",
            "reserved_fee": text(entry.reserved_fee),
            "remaining_fee": text(left_fee),
            "paid_fee": text(entry.paid_fee),
            "locked": text(account.reserved(order)),
            "prevented_locked": "0",
            "executed_volume": text(order.filled),
            "trades_count": len(order.fills),
        }
        for name in ("time_in_force", "identifier", "smp_type"):
            if getattr(entry, name) is not None:
                values[name] = getattr(entry, name)
        if with_trades:
            values["trades"] = [self._trade(entry, n) for n in range(len(order.fills))]
        return values

    def _trade(self, entry: UpbitOrderEntry, n: int) -> dict[str, Any]:
        fill = entry.order.fills[n]
        return {
            "market": self._market.universe.codes[entry.order.index],
            "uuid": entry.trade_uuids[n],
            "price": text(fill.price),
            "volume": text(fill.quantity),
            "funds": text(fill.price * fill.quantity // COIN),
            "side": "bid" if entry.order.side == "buy" else "ask",
            "trend": "up" if entry.order.side == "buy" else "down",
            "created_at": moment_of(fill.at).isoformat(),
        }
