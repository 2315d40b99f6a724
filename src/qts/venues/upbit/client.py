"""Upbit over REST: signed requests, one budget per group of services, errors by their meaning."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, Self

import aiohttp
import msgspec

from qts.domain import (
    Clock,
    OutcomeUnknownError,
    QtsError,
    RefusedError,
    SystemClock,
    UnreachableError,
)
from qts.venues.config import UpbitConfig
from qts.venues.errors import RateLimitedError, VenueRejectedError, no_reply_error
from qts.venues.guarded_body import BeforeSend, GuardedJsonBody
from qts.venues.quote import Quote
from qts.venues.ratelimit.limiter import RateLimiter
from qts.venues.ratelimit.limits import RateLimitConfig, RequestPriority
from qts.venues.upbit import metrics

Group = Literal["quotes", "default", "order"]
Values = Sequence[tuple[str, str]]

_WRONG_KEY = frozenset(
    {"jwt_verification", "expired_access_key", "no_authorization_ip", "invalid_access_key"}
)
_BEGAN_NS = SystemClock().monotonic_ns()  # this process
_BLOCK_S = 10.0  # when a block does not say how long it lasts
_SECONDS = re.compile(r"(\d+)\s*(?:seconds?|초)")


class UpbitClient:
    """A session with Upbit; `open` and leave it. Quotes need no key."""

    def __init__(self, config: UpbitConfig, clock: Clock, session: aiohttp.ClientSession) -> None:
        self.config = config
        self._clock = clock
        self._session = session
        self.remaining: dict[str, int] = {}  # as Upbit counts, by its own groups
        rates = {
            "quotes": config.quotes_per_second,
            "default": config.requests_per_second,
            "order": config.orders_per_second,
        }
        self.budgets = {group: RateLimiter(_limits(rate), clock) for group, rate in rates.items()}

    @classmethod
    @asynccontextmanager
    async def open(cls, config: UpbitConfig, clock: Clock) -> AsyncIterator[Self]:
        lived_s = (clock.monotonic_ns() - _BEGAN_NS) / 1e9
        if config.access_key and 0 <= lived_s < 1:
            # A life before this one may have used up the second in which it ended.
            await clock.sleep(1 - lived_s)
        timeout = aiohttp.ClientTimeout(total=config.timeout_s)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            session._retry_connection = False  # one grant, one request
            client = cls(config, clock, session)
            try:
                yield client
            finally:
                for budget in client.budgets.values():
                    budget.close()

    async def tickers(
        self, markets: Sequence[str] = (), priority: RequestPriority = RequestPriority.NORMAL
    ) -> list[Quote]:
        """Quotes of the markets in one request; of all won markets when none is named."""
        if markets:
            path, values = "/v1/ticker", [("markets", ",".join(markets))]
        else:
            path, values = "/v1/ticker/all", [("quote_currencies", "KRW")]
        rows = await self.call("GET", path, values, "quotes", priority)
        return [ticker_quote(row, "upbit_rest") for row in rows]

    async def call(
        self,
        method: Literal["GET", "POST", "DELETE"],
        path: str,
        values: Values,
        group: Group,
        priority: RequestPriority,
        leaving: BeforeSend | None = None,
    ) -> Any:
        """One request; those outside of the quotes are signed.

        `leaving` is called as a body leaves.
        """
        budget, changes = self.budgets[group], method != "GET"
        async with budget.request(priority):
            form: dict[str, Any] = (
                {"data": GuardedJsonBody(dict(values), leaving)}
                if method == "POST"
                else {"params": values}
            )
            headers = {} if group == "quotes" else {"Authorization": self.authorization(values)}
            sent, status = metrics.RequestTimer(method, path, self._clock), 0
            try:
                async with self._session.request(
                    method, self.config.url + path, headers=headers, **form
                ) as response:
                    data, status = await response.read(), response.status
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise sent.failed(no_reply_error("Upbit", error, changes)) from None
            finally:
                sent.ended(status)
        self._note_remaining(response.headers.get("Remaining-Req", ""), budget)
        found = _found_in(status, data, response.headers.get("Retry-After"), changes)
        if not isinstance(found, QtsError):
            return found
        if isinstance(found, RateLimitedError):
            self._slow_down(budget, found)
        raise sent.failed(found)

    def authorization(self, values: Values = ()) -> str:
        """A token for one request; the hash is over the values as sent, not URL-encoded."""
        if not self.config.access_key or not self.config.secret_key:
            raise RefusedError("venues.upbit.access_key and venues.upbit.secret_key are not set")
        claims = {"access_key": self.config.access_key.reveal(), "nonce": str(uuid.uuid4())}
        if values:
            query = "&".join(f"{name}={value}" for name, value in values)
            claims["query_hash"] = hashlib.sha512(query.encode()).hexdigest()
            claims["query_hash_alg"] = "SHA512"
        signed = _base64({"alg": "HS512", "typ": "JWT"}) + "." + _base64(claims)
        secret = self.config.secret_key.reveal().encode()
        signature = hmac.new(secret, signed.encode(), hashlib.sha512).digest()
        return f"Bearer {signed}.{_base64(signature)}"

    def _slow_down(self, budget: RateLimiter, refusal: RateLimitedError) -> None:
        budget.on_throttled(refusal.retry_after_s)
        if refusal.blocked:  # whatever is asked meanwhile makes the block longer
            for each in self.budgets.values():
                each.pause_for(refusal.retry_after_s or _BLOCK_S)

    def _note_remaining(self, header: str, budget: RateLimiter) -> None:
        """`group=order; min=1800; sec=0`: another program on this key may have used the second."""
        parts = dict(part.strip().split("=", 1) for part in header.split(";") if "=" in part)
        if "group" in parts and parts.get("sec", "").isdigit():
            left = self.remaining[parts["group"]] = int(parts["sec"])
            metrics.left(parts["group"], left)
            if left == 0 and budget.try_acquire(RequestPriority.ORDER):
                budget.release()
                budget.pause_for(1.0)


def ticker_quote(row: dict[str, Any], source: str) -> Quote:
    symbol = str(row.get("market") or row.get("code") or "")
    volume = float(row.get("acc_trade_volume") or 0.0)
    return Quote(symbol, float(row["trade_price"]), volume, 0.0, 0.0, row, source)


def _limits(per_second: int) -> RateLimitConfig:
    """Upbit limits seconds only, and groups share nothing: nothing is kept back."""
    return RateLimitConfig(
        per_second=per_second,
        per_minute=per_second * 60,
        per_day=1_000_000,
        orders_per_second=0,
        accounts_per_second=0,
    )


def _found_in(status: int, data: bytes, retry_after: str | None, changes: bool) -> Any:
    """What a reply says: its JSON, or the error that it is."""
    if status >= 300:
        return _error_of(status, data, retry_after, changes)
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        kind = OutcomeUnknownError if changes else UnreachableError
        return kind("Upbit answered something that is not JSON")


def _error_of(status: int, data: bytes, retry_after: str | None, changes: bool) -> QtsError:
    try:
        found = msgspec.json.decode(data)["error"]
        name, text = str(found.get("name", "")), str(found.get("message", ""))
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError):
        name, text = "", ""
    told = f"Upbit HTTP {status} {name}: {text.strip() or 'no explanation'}"
    if status in (429, 418):
        return RateLimitedError(told, _pause(status, text, retry_after), blocked=status == 418)
    if name in _WRONG_KEY:
        return RefusedError(f"venues.upbit.access_key or secret_key is wrong ({told})")
    if status >= 500:
        return OutcomeUnknownError(told) if changes else UnreachableError(told)
    return VenueRejectedError(told, name)


def _pause(status: int, text: str, retry_after: str | None) -> float | None:
    if retry_after and retry_after.isdigit():
        return float(retry_after)
    if found := _SECONDS.search(text):
        return float(found[1])
    return _BLOCK_S if status == 418 else None


def _base64(value: object) -> str:
    data = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
