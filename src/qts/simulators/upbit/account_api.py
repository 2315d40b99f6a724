"""Upbit requests about accounts, orders, keys, wallets, deposits and withdrawals."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from aiohttp import web

from qts.simulators.market.markets import CoinMarket
from qts.simulators.market.rules import moment_of, seconds_of
from qts.simulators.matching import SimulatedHolding
from qts.simulators.server import reply
from qts.simulators.upbit.gateway import UpbitCustomer, UpbitError, text
from qts.simulators.upbit.orders import UpbitOrderApi, UpbitOrderEntry


class UpbitCall(NamedTuple):
    customer: UpbitCustomer
    values: Mapping[str, Any]
    lists: Mapping[str, list[str]]


class UpbitAccountApi:
    def __init__(self, market: CoinMarket, orders: UpbitOrderApi) -> None:
        self._market = market
        self._orders = orders

    def accounts(self, call: UpbitCall) -> web.Response:
        return reply([self._krw(call.customer), *self._coins(call.customer)])

    def _krw(self, customer: UpbitCustomer) -> dict[str, Any]:
        return _account("KRW", customer.account.available, customer.account.locked, 0)

    def _coins(self, customer: UpbitCustomer) -> list[dict[str, Any]]:
        return [
            self._coin(index, holding)
            for index, holding in customer.account.holdings.items()
            if holding.quantity
        ]

    def _coin(self, index: int, holding: SimulatedHolding) -> dict[str, Any]:
        average = holding.cost * 10**8 // holding.quantity if holding.quantity else 0
        name = self._market.universe.names[index]
        return _account(name, holding.quantity - holding.locked, holding.locked, average)

    def place(self, call: UpbitCall) -> web.Response:
        """Place an order; the answer comes before the match, and shows none of its trades."""
        entry = self._orders.place(call.customer, call.values)
        return reply(entry.accepted, status=201)

    def test(self, call: UpbitCall) -> web.Response:
        entry = self._orders.place(call.customer, call.values, dry=True)
        return reply(self._orders.as_json(entry), status=201)

    def cancel_and_new(self, call: UpbitCall) -> web.Response:
        old, new = self._orders.cancel_and_new(call.customer, call.values)
        values = self._orders.as_json(old) | {"new_order_uuid": new.uuid}
        if new.identifier is not None:
            values["new_order_identifier"] = new.identifier
        return reply(values, status=201)

    def order(self, call: UpbitCall) -> web.Response:
        entry = self._orders.find(call.customer, call.values)
        return reply(self._orders.as_json(entry, with_trades=True))

    def cancel(self, call: UpbitCall) -> web.Response:
        entry = self._orders.find(call.customer, call.values)
        self._orders.cancel(entry)
        return reply(self._orders.as_json(entry))

    def listed(self, call: UpbitCall) -> web.Response:
        """Return the orders of some states or ids, by the older of the venue's lists."""
        if call.lists.get("uuids[]") or call.lists.get("identifiers[]"):
            return self.orders_by_id(call)
        states = call.lists.get("states[]", [call.values.get("state", "wait")])
        return self._page(call, states, 100)

    def open(self, call: UpbitCall) -> web.Response:
        states = call.lists.get("states[]", [call.values.get("state", "wait")])
        return self._page(call, states, 100)

    def closed(self, call: UpbitCall) -> web.Response:
        state = call.values.get("state")
        states = call.lists.get("states[]", [state] if state else ["done", "cancel"])
        return self._page(call, states, 1000)

    def _page(self, call: UpbitCall, states: list[str], maximum: int) -> web.Response:
        limit, page = _count(call, "limit", maximum, maximum), _count(call, "page", 1, 10**6)
        first, last = (_seconds(call, name) for name in ("start_time", "end_time"))
        entries = [
            entry
            for entry in self._orders.of(call.customer, call.values.get("market"))
            if entry.state in states
            and (first is None or entry.order.placed_at >= first)
            and (last is None or entry.order.placed_at <= last)
        ]
        if call.values.get("order_by") == "asc":
            entries.reverse()
        start = (page - 1) * limit
        return reply([self._orders.as_json(entry) for entry in entries[start : start + limit]])

    def _named(self, call: UpbitCall, maximum: int) -> list[UpbitOrderEntry]:
        uuids = call.lists.get("uuids[]", [])
        identifiers = call.lists.get("identifiers[]", [])
        if not 1 <= len(uuids) + len(identifiers) <= maximum:
            raise UpbitError(400, "validation_error", f"1 to {maximum} uuids[] or identifiers[]")
        keys = [{"uuid": each} for each in uuids] + [{"identifier": each} for each in identifiers]
        entries = []
        for key in keys:
            try:
                entries.append(self._orders.find(call.customer, key))
            except UpbitError:
                continue  # the venue omits unknown orders
        return entries

    def orders_by_id(self, call: UpbitCall) -> web.Response:
        return reply([self._orders.as_json(entry) for entry in self._named(call, 100)])

    def cancel_by_id(self, call: UpbitCall) -> web.Response:
        return self._cancel_all(self._named(call, 20))

    def cancel_open(self, call: UpbitCall) -> web.Response:
        count = _count(call, "count", 20, 300)
        side = {"bid": "buy", "ask": "sell"}.get(str(call.values.get("cancel_side")))
        pairs = call.values.get("pairs")
        chosen = [
            entry
            for entry in self._orders.of(call.customer)
            if entry.order.open
            and side in (None, entry.order.side)
            and (not pairs or self._market.universe.codes[entry.order.index] in pairs.split(","))
        ]
        return self._cancel_all(chosen[:count])

    def _cancel_all(self, entries: list[UpbitOrderEntry]) -> web.Response:
        cancelled: list[dict[str, Any]] = []
        failed: list[dict[str, Any]] = []
        for entry in entries:
            is_open = entry.order.open
            if is_open:
                self._orders.cancel(entry)
            values: dict[str, Any] = {
                "uuid": entry.uuid,
                "market": self._market.universe.codes[entry.order.index],
            }
            if entry.identifier is not None:
                values["identifier"] = entry.identifier
            (cancelled if is_open else failed).append(values)
        return reply(
            {
                "success": {"count": len(cancelled), "orders": cancelled},
                "failed": {"count": len(failed), "orders": failed},
            }
        )

    def chance(self, call: UpbitCall) -> web.Response:
        index = self._market.index.get(str(call.values.get("market", "")))
        if index is None:
            raise UpbitError(404, "market_not_found")
        code, name = self._market.universe.codes[index], self._market.universe.names[index]
        fees = dict.fromkeys(("bid_fee", "ask_fee", "maker_bid_fee", "maker_ask_fee"), "0.0005")
        holding = call.customer.account.holdings.get(index, SimulatedHolding())
        return reply(
            {
                **fees,
                "market": {
                    "id": code,
                    "name": code,
                    "order_types": ["limit"],
                    "order_sides": ["ask", "bid"],
                    "bid_types": ["best_fok", "best_ioc", "limit", "limit_fok", "price"],
                    "ask_types": ["best_fok", "best_ioc", "limit", "limit_fok", "market"],
                    "bid": {"currency": "KRW", "min_total": "5000"},
                    "ask": {"currency": name, "min_total": "5000"},
                    "max_total": "1000000000",
                    "state": "active",
                },
                "bid_account": self._krw(call.customer),
                "ask_account": self._coin(index, holding),
            }
        )


def _account(currency: str, free: int, locked: int, average: int) -> dict[str, Any]:
    return {
        "currency": currency,
        "balance": text(free),
        "locked": text(locked),
        "avg_buy_price": text(average),
        "avg_buy_price_modified": False,
        "unit_currency": "KRW",
    }


def _seconds(call: UpbitCall, name: str) -> int | None:
    """Return a time given in milliseconds or in ISO 8601 as seconds of the market."""
    value = str(call.values.get(name, ""))
    if not value:
        return None
    try:
        moment = (
            datetime.fromtimestamp(int(value) / 1000, UTC)
            if value.isdigit()
            else datetime.fromisoformat(value)
        )
    except ValueError:
        raise UpbitError(400, "validation_error", f"{name} is not a time") from None
    return seconds_of(moment)


def _count(call: UpbitCall, name: str, default: int, maximum: int) -> int:
    value = str(call.values.get(name, default))
    if not value.isdigit() or not 1 <= int(value) <= maximum:
        raise UpbitError(400, "validation_error", f"{name} is 1 to {maximum}")
    return int(value)


_KEY_DAYS = 365


class UpbitWalletApi:
    def __init__(self, market: CoinMarket) -> None:
        self._market = market
        self._issued = moment_of(market.time)

    def status(self, _call: UpbitCall) -> web.Response:
        """Return the wallet of each coin; every one works."""
        now = moment_of(self._market.time).astimezone(UTC)
        return reply(
            [
                {
                    "currency": name,
                    "wallet_state": "working",
                    "block_state": "normal",
                    "block_height": 1_000_000,
                    "block_updated_at": now.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "+00:00",
                    "block_elapsed_minutes": 1,
                    "net_type": name,
                    "network_name": name,
                }
                for name in self._market.universe.names
            ]
        )

    def keys(self, call: UpbitCall) -> web.Response:
        expires: datetime = self._issued + timedelta(days=_KEY_DAYS)
        return reply(
            [{"access_key": call.customer.key.access_key, "expire_at": expires.isoformat()}]
        )

    def none(self, _call: UpbitCall) -> web.Response:
        return reply([])

    def no_deposit(self, _call: UpbitCall) -> web.Response:
        raise UpbitError(404, "deposit_not_found")

    def no_withdrawal(self, _call: UpbitCall) -> web.Response:
        raise UpbitError(404, "withdraw_not_found")

    def no_address(self, _call: UpbitCall) -> web.Response:
        raise UpbitError(404, "coin_address_not_found")

    def deposit_chance(self, call: UpbitCall) -> web.Response:
        currency = self._currency(call)
        return reply(
            {
                "currency": currency,
                "net_type": call.values.get("net_type", currency),
                "is_deposit_possible": True,
                "deposit_impossible_reason": None,
                "minimum_deposit_amount": "0",
                "minimum_deposit_confirmations": 3,
                "decimal_precision": 8,
            }
        )

    def withdrawal_chance(self, call: UpbitCall) -> web.Response:
        currency, account = self._currency(call), call.customer.account
        holding = account.holdings.get(self._market.index.get(f"KRW-{currency}", -1))
        free, locked = account.available, account.locked
        if currency != "KRW":
            locked = holding.locked if holding else 0
            free = holding.quantity - locked if holding else 0
        return reply(
            {
                "member_level": {
                    "security_level": 4,
                    "fee_level": 0,
                    "email_verified": True,
                    "identity_auth_verified": True,
                    "bank_account_verified": True,
                    "two_factor_auth_verified": True,
                    "locked": False,
                    "wallet_locked": False,
                },
                "currency": {
                    "code": currency,
                    "withdraw_fee": "0.0",
                    "is_coin": currency != "KRW",
                    "wallet_state": "working",
                    "wallet_support": ["deposit", "withdraw"],
                },
                "account": _account(currency, free, locked, 0),
                "withdraw_limit": _limit(currency, free),
            }
        )

    def _currency(self, call: UpbitCall) -> str:
        currency = str(call.values.get("currency", ""))
        if currency != "KRW" and f"KRW-{currency}" not in self._market.index:
            raise UpbitError(404, "currency_not_found")
        return currency


def _limit(currency: str, free: int) -> dict[str, Any]:
    return {
        "currency": currency,
        "onetime": None,
        "daily": None,
        "remaining_daily": "0.0",
        "remaining_daily_fiat": "5000000000",
        "fiat_currency": "KRW",
        "minimum": "0",
        "fixed": 8,
        "withdraw_delayed_fiat": "0",
        "can_withdraw": free > 0,
        "remaining_daily_krw": "5000000000",
    }
