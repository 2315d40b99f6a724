"""Upbit requests about keys, wallets, deposits and withdrawals; reading only, nothing was moved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

from qts.simulators.market.coins import CoinMarket
from qts.simulators.market.sessions import moment_of
from qts.simulators.server import reply
from qts.simulators.upbit.account_api import UpbitCall
from qts.simulators.upbit.gateway import UpbitError, text

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
                "account": _account(currency, free, locked),
                "withdraw_limit": _limit(currency, free),
            }
        )

    def _currency(self, call: UpbitCall) -> str:
        currency = str(call.values.get("currency", ""))
        if currency != "KRW" and f"KRW-{currency}" not in self._market.index:
            raise UpbitError(404, "currency_not_found")
        return currency


def _account(currency: str, free: int, locked: int) -> dict[str, Any]:
    return {
        "currency": currency,
        "balance": text(free),
        "locked": text(locked),
        "avg_buy_price": "0",
        "avg_buy_price_modified": False,
        "unit_currency": "KRW",
    }


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
