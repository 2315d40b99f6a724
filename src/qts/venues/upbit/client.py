"""REST client of Upbit: signed requests, one rate limiter per endpoint group, typed errors.

The HTTP status decides first: 429 and 418 whatever the body says, a redirect, and a 5xx, after
which the outcome is unknown. For the other statuses the name in the body decides.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, Self

import aiohttp
import msgspec

from qts.domain import BookLevel, Clock, OrderBook, QtsError, RefusedError, SystemClock
from qts.venues.config import RateLimitConfig, RequestPriority, UpbitConfig
from qts.venues.errors import (
    UNDECODABLE,
    BeforeSend,
    GuardedJsonBody,
    RateLimitedError,
    ReplyClass,
    VenueCode,
    by_code,
    error_of_class,
    no_reply_error,
    redirect_error,
)
from qts.venues.market_data import ClockSkew, Quote
from qts.venues.metrics import UpbitRequestMeter, exported_budget, set_upbit_remaining
from qts.venues.rate_limiter import RateLimiter

_REJECTED = ReplyClass.REJECTED
_SETTINGS = ReplyClass.SETTINGS
_WRONG_KEY = "venues.upbit.access_key or secret_key is wrong"

CODES = by_code(
    VenueCode("400", ReplyClass.REJECTED_QUOTE, "quotes: a value is wrong"),
    VenueCode("404", ReplyClass.REJECTED_QUOTE, "quotes: no such symbol"),
    VenueCode("create_ask_error", _REJECTED, "a sell order is wrong"),
    VenueCode("create_bid_error", _REJECTED, "a buy order is wrong"),
    VenueCode("expired_access_key", _SETTINGS, f"{_WRONG_KEY}: the key has expired"),
    VenueCode(
        "identifier_already_exists",
        ReplyClass.UNKNOWN,
        "the client order id was used before; that order may be open",
        confirmed=False,
    ),
    VenueCode("insufficient_funds_ask", _REJECTED, "more than can be sold"),
    VenueCode("insufficient_funds_bid", _REJECTED, "more than the cash"),
    VenueCode("invalid_access_key", _SETTINGS, f"{_WRONG_KEY}: no such key"),
    VenueCode("invalid_price_ask", _REJECTED, "the price of a sell order is not on a tick"),
    VenueCode("invalid_price_bid", _REJECTED, "the price of a buy order is not on a tick"),
    VenueCode("invalid_query_payload", _REJECTED, "the signature does not cover the values"),
    VenueCode("jwt_verification", _SETTINGS, f"{_WRONG_KEY}: the signature does not match"),
    VenueCode("market_not_found", _REJECTED, "no such symbol", confirmed=False),
    VenueCode(
        "no_authorization_ip",
        _SETTINGS,
        "this machine's address is not on the allow-list of venues.upbit.access_key",
    ),
    VenueCode("no_authorization_token", _REJECTED, "the request is not signed"),
    VenueCode(
        "nonce_used",
        ReplyClass.UNKNOWN,
        "the request arrived twice; the first copy may be executed",
    ),
    VenueCode("order_not_cancelable", _REJECTED, "nothing left to cancel", confirmed=False),
    VenueCode("order_not_found", _REJECTED, "no such order"),
    VenueCode(
        "out_of_scope",
        _SETTINGS,
        "venues.upbit.access_key lacks a permission of view assets, view orders, place orders",
    ),
    VenueCode("under_min_total_ask", _REJECTED, "the value of a sell order is too small"),
    VenueCode("under_min_total_bid", _REJECTED, "the value of a buy order is too small"),
    VenueCode("validation_error", _REJECTED, "a value is missing or wrong"),
)
STATUSES = {
    418: VenueCode("HTTP 418", ReplyClass.BLOCKED, "banned for a time; each request extends it"),
    429: VenueCode("HTTP 429", ReplyClass.RATE_LIMITED, "too many requests"),
}
BLOCK_S = 10.0  # for a block without a duration
_MAX_PAUSE_S = 86_400.0
_SECONDS = re.compile(r"([0-9]{1,9})\s*(?:seconds?|초)")
_DIGITS = re.compile(r"[0-9]{1,9}")


def decode_reply(status: int, data: bytes, retry_after: str | None, changes: bool) -> Any:
    """Return the JSON of a reply, or the error that the reply means."""
    if not 200 <= status < 300:
        return _reply_error(status, data, retry_after, changes)
    try:
        return msgspec.json.decode(data)
    except UNDECODABLE:
        message = "the reply of Upbit is not valid JSON"
        return error_of_class(ReplyClass.UNKNOWN, message, "", changes)


def _reply_error(status: int, data: bytes, retry_after: str | None, changes: bool) -> QtsError:
    if 300 <= status < 400:
        return redirect_error("Upbit", status, changes)
    try:
        error = msgspec.json.decode(data)["error"]
        name, text = str(error.get("name", "")), str(error.get("message", ""))
    except (*UNDECODABLE, KeyError, TypeError, AttributeError):
        name, text = "", ""
    message = f"Upbit HTTP {status} {name}: {text.strip() or 'no explanation'}"
    if limited := STATUSES.get(status):
        pause_s = _pause(status, text, retry_after)
        return error_of_class(limited.kind, message, name, changes, pause_s)
    listed = CODES.get(name)
    if listed is None or not 400 <= status < 500:
        return error_of_class(ReplyClass.UNKNOWN, message, name, changes)
    if listed.kind is ReplyClass.SETTINGS:
        message = f"{listed.meaning} ({message})"
    return error_of_class(listed.kind, message, name, changes)


def _pause(status: int, text: str, retry_after: str | None) -> float | None:
    if retry_after and _DIGITS.fullmatch(retry_after):
        return min(float(retry_after), _MAX_PAUSE_S)
    if found := _SECONDS.search(text):
        return min(float(found[1]), _MAX_PAUSE_S)
    return BLOCK_S if status == 418 else None


Group = Literal["quotes", "default", "order"]
Values = Sequence[tuple[str, str]]

EXIT_RESERVE = 2  # of orders per second; half of it is for exits alone
_STARTED_NS = SystemClock().monotonic_ns()  # this process
BOOK_LEVELS = 15  # Upbit takes 1, 5, 15 or 30


class UpbitClient:
    """Client of one Upbit key, created by `open`; quotes need no key."""

    def __init__(self, config: UpbitConfig, clock: Clock, session: aiohttp.ClientSession) -> None:
        self.config = config
        self.skew = ClockSkew("upbit", clock)
        self._clock = clock
        self._session = session
        self.remaining: dict[str, int] = {}  # as Upbit counts, by Upbit's groups
        rates = {
            "default": config.requests_per_second,
            "order": config.orders_per_second,
        }
        self.limiters = {"quotes": RateLimiter(quote_limits(config), clock)} | {
            group: RateLimiter(_limits(rate, EXIT_RESERVE if group == "order" else 0), clock)
            for group, rate in rates.items()
        }

    @classmethod
    @asynccontextmanager
    async def open(cls, config: UpbitConfig, clock: Clock) -> AsyncIterator[Self]:
        uptime_s = (clock.monotonic_ns() - _STARTED_NS) / 1e9
        if 0 <= uptime_s < 1:
            # An earlier process may have used up the second in which it ended.
            await clock.sleep(1 - uptime_s)
        timeout = aiohttp.ClientTimeout(total=config.timeout_s)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            session._retry_connection = False  # one grant, one request
            client = cls(config, clock, session)
            try:
                with exported_budget("upbit", client.limiters):
                    yield client
            finally:
                for limiter in client.limiters.values():
                    limiter.close()

    async def tickers(
        self,
        symbols: Sequence[str] | Callable[[], Sequence[str]] = (),
        priority: RequestPriority = RequestPriority.NORMAL,
    ) -> list[Quote]:
        """Quote the symbols in one request; without symbols, all that trade in won.

        A function as `symbols` is called after the grant, and returns at least one.
        """
        path: str
        values: Values | Callable[[], Values]
        if callable(symbols):
            path, values = "/v1/ticker", lambda: [("markets", ",".join(symbols()))]
        elif symbols:
            path, values = "/v1/ticker", [("markets", ",".join(symbols))]
        else:
            path, values = "/v1/ticker/all", [("quote_currencies", "KRW")]
        rows = await self.call("GET", path, values, "quotes", priority)
        return [ticker_quote(row, "upbit_rest") for row in rows]

    async def order_book(self, symbol: str, priority: RequestPriority) -> OrderBook:
        values = [("markets", symbol), ("count", str(BOOK_LEVELS))]
        (row,) = await self.call("GET", "/v1/orderbook", values, "quotes", priority)
        return order_book(row)

    async def call(
        self,
        method: Literal["GET", "POST", "DELETE"],
        path: str,
        values: Values | Callable[[], Values],
        group: Group,
        priority: RequestPriority,
        before_send: BeforeSend | None = None,
    ) -> Any:
        """Send one request, signed unless its group is `quotes`, and return the decoded reply.

        A function as `values` is called after the grant. `before_send` is called when a body is
        written to the connection.
        """
        limiter, changes = self.limiters[group], method != "GET"
        meter = UpbitRequestMeter(method, path, self._clock)
        async with limiter.request(priority):
            values = values() if callable(values) else values
            form: dict[str, Any] = (
                {"data": GuardedJsonBody(dict(values), before_send)}
                if method == "POST"
                else {"params": values}
            )
            headers = {} if group == "quotes" else {"Authorization": self.authorization(values)}
            sent_ns = self._clock.monotonic_ns()
            with meter:
                try:
                    async with self._session.request(
                        method,
                        self.config.url + path,
                        headers=headers,
                        allow_redirects=False,
                        **form,
                    ) as response:
                        data, meter.status = await response.read(), response.status
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    raise meter.failed(no_reply_error("Upbit", error, changes)) from None
                retry_after = response.headers.get("Retry-After")
                result = decode_reply(meter.status, data, retry_after, changes)
                if isinstance(result, QtsError):
                    meter.failed(result)
        self.skew.record(response.headers.get("Date"), sent_ns)
        self._update_remaining(response.headers.get("Remaining-Req", ""), limiter)
        if not isinstance(result, QtsError):
            return result
        if isinstance(result, RateLimitedError):
            self._slow_down(limiter, result)
        raise result

    def authorization(self, values: Values = ()) -> str:
        """Return the token of one request; its hash covers the values before URL encoding."""
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

    def _slow_down(self, limiter: RateLimiter, error: RateLimitedError) -> None:
        limiter.on_throttled(error.retry_after_s)
        if error.blocked:  # requests during a block prolong it
            for each in self.limiters.values():
                each.pause_for(error.retry_after_s or BLOCK_S)

    def _update_remaining(self, header: str, limiter: RateLimiter) -> None:
        """Read `group=order; min=1800; sec=0`; another program may have used up the second."""
        parts = dict(part.strip().split("=", 1) for part in header.split(";") if "=" in part)
        if "group" in parts and _DIGITS.fullmatch(parts.get("sec", "")):
            remaining = self.remaining[parts["group"]] = int(parts["sec"])
            set_upbit_remaining(parts["group"], remaining)
            if remaining == 0 and limiter.try_acquire(RequestPriority.EXIT):
                limiter.release()
                limiter.pause_for(1.0)


def ticker_quote(row: dict[str, Any], source: str) -> Quote:
    symbol = str(row.get("market") or row.get("code") or "")
    volume = float(row.get("acc_trade_volume") or 0.0)
    at = float(row.get("trade_timestamp") or 0.0) / 1000
    return Quote(symbol, float(row["trade_price"]), volume, 0.0, 0.0, row, source, at)


def order_book(row: dict[str, Any], at: float = 0.0) -> OrderBook:
    """Return the order book of a REST row or a stream message, received at `at`."""
    units = row["orderbook_units"]
    bids = tuple(BookLevel(float(u["bid_price"]), float(u["bid_size"])) for u in units)
    asks = tuple(BookLevel(float(u["ask_price"]), float(u["ask_size"])) for u in units)
    symbol = str(row.get("market") or row.get("code") or "")
    return OrderBook(symbol, bids, asks, at, float(row.get("timestamp") or 0.0) / 1000)


def quote_limits(config: UpbitConfig) -> RateLimitConfig:
    """Return the limits of the quotes group."""
    return _limits(config.quotes_per_second, 0)


def _limits(per_second: int, orders_per_second: int) -> RateLimitConfig:
    """Return the limits of a group: Upbit limits seconds only; each group has its own."""
    return RateLimitConfig(
        per_second=per_second,
        per_minute=per_second * 60,
        per_day=1_000_000,
        orders_per_second=orders_per_second,
        accounts_per_second=0,
    )


def _base64(value: object) -> str:
    data = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
