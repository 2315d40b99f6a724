"""Upbit gateway: JWT authentication, request groups, and their limits (429, then 418)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any
from urllib.parse import parse_qs, unquote

import msgspec
from aiohttp import web

from qts.simulators.config import RequestLimits, UpbitKey, UpbitSimulatorConfig
from qts.simulators.market.rules import COIN
from qts.simulators.matching import SimulatedAccount
from qts.simulators.server import Meter, reply


class UpbitError(Exception):
    """Error reply with an HTTP status and a name."""

    def __init__(
        self, status: int, name: str | int, message: str = "", headers: dict[str, str] | None = None
    ) -> None:
        self.status = status
        self.name = name
        self.message = message or str(name)
        self.headers = headers or {}
        super().__init__(self.message)

    def reply(self) -> web.Response:
        error = {"name": self.name, "message": self.message}
        return reply({"error": error}, self.status, self.headers)


def text(amount: int) -> str:
    """Format an integer of 1/COIN as the REST API does: 0.01, 100000000."""
    whole, part = divmod(abs(amount), COIN)
    sign = "-" if amount < 0 else ""
    return f"{sign}{whole}.{part:08}".rstrip("0").rstrip(".")


def number(amount: int) -> float | int:
    """Convert an integer of 1/COIN to the number of the quotation API and the streams."""
    return amount // COIN if amount % COIN == 0 else amount / COIN


def amount_of(value: object, error: str) -> int:
    """Parse a client's number to 1/COIN; raise UpbitError for more than eight decimals."""
    try:
        scaled = Decimal(str(value)) * COIN
    except InvalidOperation:
        raise UpbitError(400, error, f"{value!r} is not a number") from None
    if not scaled.is_finite() or scaled != scaled.to_integral_value() or scaled <= 0:
        raise UpbitError(400, error, f"{value!r} is not a positive number of eight decimals")
    return int(scaled)


_NS = 10**9
FEE_PPM = 500
_NONCES = 100_000
_QUOTATION = frozenset({"market", "candle", "trade", "ticker", "orderbook"})
_ALGORITHMS = {"HS256": hashlib.sha256, "HS512": hashlib.sha512}


@dataclass(eq=False)
class UpbitCustomer:
    key: UpbitKey
    account: SimulatedAccount
    nonces: deque[str] = field(default_factory=lambda: deque(maxlen=_NONCES))
    known_nonces: set[str] = field(default_factory=set)

    def use_nonce(self, nonce: str) -> bool:
        """Record a nonce; return False if it was used before."""
        if nonce in self.known_nonces:
            return False
        if len(self.nonces) == _NONCES:
            self.known_nonces.discard(self.nonces[0])
        self.nonces.append(nonce)
        self.known_nonces.add(nonce)
        return True


@dataclass
class Block:
    """Block of a scope that does not slow down, longer each time."""

    rejections: deque[int] = field(default_factory=deque)
    until_ns: int = 0
    times: int = 0


class UpbitGateway:
    def __init__(self, config: UpbitSimulatorConfig, now_ns: Callable[[], int]) -> None:
        self._config = config
        self.now_ns = now_ns
        self.customers = {
            key.access_key: UpbitCustomer(
                key, SimulatedAccount(key.krw * COIN, COIN, FEE_PPM, FEE_PPM)
            )
            for key in config.keys
        }
        self.meters: dict[tuple[str, str], Meter] = {}
        self._blocks: dict[str, Block] = {}

    # Limits

    def admit(self, scope: str, group: str) -> dict[str, str]:
        """Count a request of a scope; return the headers of its reply or raise UpbitError."""
        now = self.now_ns()
        block = self._blocks.setdefault(scope, Block())
        meter = self._meter(scope, group)
        fits = meter.admit(now)
        headers = _remaining(meter, group, now)
        if now < block.until_ns:
            left = -(-(block.until_ns - now) // _NS)
            raise UpbitError(418, "blocked", f"blocked for {left} seconds", headers)
        if not fits:
            self._reject(block, now)
            name: str | int = 429 if group in _QUOTATION else "too_many_requests"
            raise UpbitError(429, name, "Too many API requests", headers)
        return headers

    def _reject(self, block: Block, now: int) -> None:
        block.rejections.append(now)
        while block.rejections[0] <= now - 10 * _NS:
            block.rejections.popleft()
        if len(block.rejections) >= self._config.block_after:
            block.rejections.clear()
            block.until_ns = now + round(self._config.block_s * 2**block.times * _NS)
            block.times += 1

    def _meter(self, scope: str, group: str) -> Meter:
        meter = self.meters.get((scope, group))
        if meter is None:
            config = self._config
            limit = {
                "order": config.order_second,
                "order-test": 8,
                "default": config.default_second,
                "order-cancel-all": 1,
                "origin": 1,
                "websocket-connect": 5,
            }.get(group, config.quotation_second)
            second_s = {"order-cancel-all": 2.0, "origin": 10.0}.get(group, 1.0)
            meter = Meter(RequestLimits(second=limit, minute=0, day=0), second_s=second_s)
            self.meters[scope, group] = meter
        return meter

    # Keys

    def authenticate(self, header: str, query: str | None) -> UpbitCustomer:
        """Return the customer of a JWT with the hash of this query; raise UpbitError otherwise."""
        if not header.startswith("Bearer "):
            raise UpbitError(401, "no_authorization_token")
        algorithm, claims, signed, signature = _parts(header.removeprefix("Bearer "))
        customer = self.customers.get(str(claims.get("access_key", "")))
        if customer is None:
            raise UpbitError(401, "invalid_access_key")
        digest = hmac.digest(customer.key.secret_key.encode(), signed, _ALGORITHMS[algorithm])
        if not hmac.compare_digest(digest, signature):
            raise UpbitError(401, "jwt_verification")
        if query:
            # A blank may be encoded either way: the official client hashes a plus.
            forms = {query, query.replace(" ", "+"), query.replace("+", " ")}
            hashes = {hashlib.sha512(form.encode()).hexdigest() for form in forms}
            algorithm = str(claims.get("query_hash_alg", "")).upper()
            if claims.get("query_hash") not in hashes or algorithm != "SHA512":
                raise UpbitError(401, "invalid_query_payload")
        nonce = str(claims.get("nonce", ""))
        if not nonce:
            raise UpbitError(401, "jwt_verification", "no nonce")
        if not customer.use_nonce(nonce):
            raise UpbitError(401, "nonce_used")
        return customer

    def stats(self) -> dict[str, Any]:
        return {f"{scope} {group}": m.stats() for (scope, group), m in self.meters.items()}


def _remaining(meter: Meter, group: str, now: int) -> dict[str, str]:
    window = meter.windows["second"]
    left = window.left(now)
    return {"Remaining-Req": f"group={group}; min={60 * window.limit}; sec={left}"}


def _parts(token: str) -> tuple[str, dict[str, Any], bytes, bytes]:
    try:
        head, body, signature = token.split(".")
        algorithm = msgspec.json.decode(_decoded(head), type=dict[str, Any])["alg"]
        if algorithm not in _ALGORITHMS:
            raise KeyError(algorithm)
        claims = msgspec.json.decode(_decoded(body), type=dict[str, Any])
        return algorithm, claims, f"{head}.{body}".encode(), _decoded(signature)
    except (ValueError, KeyError, binascii.Error, msgspec.DecodeError):
        raise UpbitError(401, "jwt_verification", "not a JWT signed with HS256 or HS512") from None


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def signed_query(request: web.Request, body: Mapping[str, Any]) -> str:
    """Return what the client must hash: the decoded query, or the body as a query."""
    if not body:
        return unquote(request.query_string)
    pairs = []
    for name, value in body.items():
        if isinstance(value, list):
            listed = name if name.endswith("[]") else f"{name}[]"
            pairs += [f"{listed}={each}" for each in value]
        else:
            pairs.append(f"{name}={value}")
    return "&".join(pairs)


async def body_of(request: web.Request) -> dict[str, Any]:
    """Return the values in a body: JSON; in a GET or DELETE a form too, which a POST ignores."""
    if request.content_type == "application/json":
        data = await request.read()
        try:
            return msgspec.json.decode(data, type=dict[str, Any]) if data else {}
        except msgspec.DecodeError:
            raise UpbitError(400, "validation_error", "the body is not a JSON object") from None
    if request.method == "POST" or not request.can_read_body:
        return {}
    form = parse_qs((await request.read()).decode(errors="replace"))
    return {
        name: values if name.endswith("[]") or len(values) > 1 else values[0]
        for name, values in form.items()
    }
