"""REST client of KIS: requests pass the rate limiter, error replies become errors by their code.

KIS replies HTTP 500 to a key that is over its limit and 200 to a rejected order, so the code
decides. The HTTP status decides only for a 429 and a redirect.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Self

import aiohttp
import msgspec

from qts.domain import Clock, OperationError, QtsError, UnreachableError
from qts.venues.config import KisConfig, RequestPriority
from qts.venues.errors import (
    UNDECODABLE,
    BeforeSend,
    GuardedJsonBody,
    NotSupportedError,
    RateLimitedError,
    ReplyClass,
    VenueCode,
    by_code,
    error_of_class,
    no_reply_error,
    redirect_error,
)
from qts.venues.kis.token import TokenStore, token_file
from qts.venues.market_data import ClockSkew
from qts.venues.metrics import RequestMeter, exported_budget
from qts.venues.rate_limiter import RateLimiter
from qts.venues.usage import UsageLog

_REJECTED = ReplyClass.REJECTED
_SETTINGS = ReplyClass.SETTINGS
_OTHER_KEY = "venues.kis.app_key belongs to the other environment; see venues.kis.paper"

CODES = by_code(
    VenueCode("EGW00103", _SETTINGS, "venues.kis.app_key is not known to KIS"),
    VenueCode("EGW00105", _SETTINGS, "venues.kis.app_secret does not belong to the app key"),
    VenueCode("EGW00121", ReplyClass.TOKEN, "the token is not valid"),
    VenueCode("EGW00123", ReplyClass.TOKEN, "the token has expired"),
    VenueCode("EGW00133", ReplyClass.TOKEN, "a token is issued once a minute"),
    VenueCode("EGW00201", ReplyClass.RATE_LIMITED, "too many requests of this key in a second"),
    VenueCode("EGW00215", ReplyClass.RATE_LIMITED, "too many requests of all customers"),
    VenueCode("EGW00301", ReplyClass.UNKNOWN, "timeout inside KIS; the request may be executed"),
    VenueCode("EGW00302", ReplyClass.UNKNOWN, "timeout inside KIS; the request may be executed"),
    VenueCode("EGW02004", _SETTINGS, _OTHER_KEY),
    VenueCode("EGW02006", ReplyClass.NOT_SUPPORTED, "not available to paper keys"),
    VenueCode("EGW02007", _SETTINGS, _OTHER_KEY),
    VenueCode("IGW00002", _SETTINGS, "venues.kis.account does not belong to the app key"),
    VenueCode("OPSQ0002", _REJECTED, "no such service", confirmed=False),
    VenueCode("OPSQ2001", _REJECTED, "an input field is wrong"),
    VenueCode("APBK0344", _REJECTED, "no such order to change or cancel", confirmed=False),
    VenueCode("APBK0400", _REJECTED, "more than can be sold"),
    VenueCode("APBK0506", _REJECTED, "the price is not on a tick", confirmed=False),
    VenueCode("APBK0551", _REJECTED, "the price is outside the day's limits", confirmed=False),
    VenueCode("APBK0656", _REJECTED, "no such symbol"),
    VenueCode("APBK0918", _REJECTED, "outside trading hours"),
    VenueCode("APBK0919", _REJECTED, "outside trading hours"),
    VenueCode("APBK0927", _REJECTED, "nothing left to change or cancel", confirmed=False),
    VenueCode("APBK0952", _REJECTED, "more than the buying power"),
    VenueCode("APBK1058", _REJECTED, "order type not allowed"),
    VenueCode("APBK1943", _REJECTED, "market orders not allowed"),
    VenueCode("APBK3013", _REJECTED, "only limit orders in this session"),
    VenueCode("40100000", _REJECTED, "paper trading: not a business day"),
    VenueCode("40570000", _REJECTED, "paper trading: before the opening"),
    VenueCode("40910000", _SETTINGS, "the account is not registered for paper trading"),
    VenueCode("90000000", ReplyClass.NOT_SUPPORTED, "not offered in paper trading"),
)
STATUSES = {429: VenueCode("HTTP 429", ReplyClass.RATE_LIMITED, "too many requests")}
TOKEN_REJECTED = frozenset({"EGW00121", "EGW00123"})
TOKEN_TOO_SOON = "EGW00133"  # noqa: S105 - a message code


def reply_error(status: int, code: str, text: str, changes: bool) -> QtsError:
    """Return the error for an error reply; `changes`: the request could modify something."""
    if 300 <= status < 400:
        return redirect_error("KIS", status, changes)
    message = f"KIS {code or f'HTTP {status}'}: {text.strip() or 'no explanation'}"
    listed = STATUSES.get(status) or CODES.get(code)
    if listed is None:
        return error_of_class(ReplyClass.UNKNOWN, message, code, changes)
    if listed.kind is ReplyClass.SETTINGS:
        message = f"{listed.meaning} ({message})"
    return error_of_class(listed.kind, message, code, changes)


_MORE = frozenset({"F", "M"})
_HEADERS = {"content-type": "application/json; charset=utf-8", "custtype": "P"}

Values = Mapping[str, str] | Callable[[], Mapping[str, str]]


class KisEndpoint(msgspec.Struct, frozen=True):
    """Path, method and transaction ids (TR) of one KIS service."""

    path: str
    tr_id: str
    paper_tr_id: str | None = None  # None: the same; "": not available to paper keys
    method: Literal["GET", "POST"] = "GET"

    @property
    def changes(self) -> bool:
        return self.method == "POST"


class Reply(msgspec.Struct):
    """Envelope of a KIS reply; unknown fields are ignored."""

    rt_cd: str = ""
    msg_cd: str = ""
    msg1: str = ""
    output: msgspec.Raw = msgspec.Raw(b"null")
    output1: msgspec.Raw = msgspec.Raw(b"null")
    output2: msgspec.Raw = msgspec.Raw(b"null")
    ctx_area_fk100: str = ""
    ctx_area_nk100: str = ""
    error_code: str = ""
    error_description: str = ""
    more: bool = False

    @property
    def token_rejected(self) -> bool:
        code = self.msg_cd or self.error_code
        return self.rt_cd != "0" and code in TOKEN_REJECTED


def parse_reply(data: bytes) -> Reply:
    """Return the envelope; for a body that does not decode, one that is no success."""
    try:
        return msgspec.json.decode(data, type=Reply)
    except UNDECODABLE:
        return Reply(msg1="the reply is not valid KIS JSON")


def error_of(reply: Reply, status: int, changes: bool) -> QtsError | None:
    """Return the error that a reply means, or None for a success."""
    code, text = reply.msg_cd or reply.error_code, reply.msg1 or reply.error_description
    if reply.rt_cd != "0":
        return reply_error(status, code, text, changes)
    if 200 <= status < 300:
        return None
    return reply_error(status, "", text, changes)  # a success in an error status is neither


class IssuedToken(msgspec.Struct):
    access_token: str = ""
    expires_in: float = 0.0
    error_code: str = ""
    error_description: str = ""


class KisClient:
    """Client of one KIS key, created by `open`."""

    def __init__(
        self,
        config: KisConfig,
        limiter: RateLimiter,
        session: aiohttp.ClientSession,
        clock: Clock,
    ) -> None:
        self.config = config
        self.limiter = limiter
        self.skew = ClockSkew("kis", clock)
        self._session = session
        self._clock = clock
        self._key, self._secret = config.credentials()
        self._tokens: TokenStore | None = None

    @classmethod
    @asynccontextmanager
    async def open(
        cls, config: KisConfig, limiter: RateLimiter, clock: Clock, folder: Path
    ) -> AsyncIterator[Self]:
        """Open a client; `folder` holds the token, which the next process reuses."""
        key, _ = config.credentials()
        connector = aiohttp.TCPConnector(limit=64, keepalive_timeout=30)
        timeout = aiohttp.ClientTimeout(total=config.timeout_s)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            # One grant, one request: aiohttp would resend a GET when the connection breaks.
            session._retry_connection = False
            client = cls(config, limiter, session, clock)
            client._tokens = TokenStore(token_file(folder, key), clock, client._issue_token)
            try:
                yield client
            finally:
                await client._tokens.close()

    async def call(
        self,
        endpoint: KisEndpoint,
        values: Values,
        priority: RequestPriority,
        *,
        next_page: bool = False,
        before_send: BeforeSend | None = None,
    ) -> Reply:
        """Send one request; replace an expired token and send it once more.

        A function as `values` is called after the grant, so that it can choose what is most
        urgent then. `before_send` is called when a body is written to the connection.
        """
        tr_id = self._tr_id(endpoint)
        assert self._tokens is not None, "a client is created by open()"  # noqa: S101
        token = await self._tokens.get()
        request = (endpoint, tr_id, values, priority, next_page, before_send)
        reply, status = await self._send(token, *request)
        if reply.token_rejected and not 300 <= status < 400:
            token = await self._tokens.replace(token)
            reply, status = await self._send(token, *request)
        error = error_of(reply, status, endpoint.changes)
        if error is None:
            return reply
        if isinstance(error, RateLimitedError):
            self.limiter.on_throttled()
        raise error

    async def approval_key(self) -> str:
        """Fetch the key that opens the WebSocket; valid for a day."""
        body = {
            "grant_type": "client_credentials",
            "appkey": self._key.reveal(),
            "secretkey": self._secret.reveal(),
        }
        status, data = await self._exchange("POST", "/oauth2/Approval", json=body)
        found = _decode(data, dict[str, Any])
        if approval := found.get("approval_key"):
            return str(approval)
        code, text = str(found.get("error_code", "")), str(found.get("error_description", ""))
        raise reply_error(status, code, text, False)

    async def _send(
        self,
        token: str,
        endpoint: KisEndpoint,
        tr_id: str,
        values: Values,
        priority: RequestPriority,
        next_page: bool,
        before_send: BeforeSend | None,
    ) -> tuple[Reply, int]:
        headers = _HEADERS | {
            "authorization": f"Bearer {token}",
            "appkey": self._key.reveal(),
            "appsecret": self._secret.reveal(),
            "tr_id": tr_id,
            "tr_cont": "N" if next_page else "",
        }
        async with self.limiter.request(priority):
            chosen = dict(values() if callable(values) else values)
            form: dict[str, Any] = (
                {"data": GuardedJsonBody(chosen, before_send)}
                if endpoint.changes
                else {"params": chosen}
            )
            sent_ns = self._clock.monotonic_ns()
            with RequestMeter("kis", _name(endpoint.path), self._clock) as meter:
                try:
                    async with self._session.request(
                        endpoint.method,
                        self.config.rest + endpoint.path,
                        headers=headers,
                        allow_redirects=False,  # the headers hold the key
                        **form,
                    ) as response:
                        data = await response.read()
                except (TimeoutError, aiohttp.ClientError, OSError) as error:
                    venue = f"KIS at {self.config.rest}"
                    raise no_reply_error(venue, error, endpoint.changes) from None
                reply = parse_reply(data)
                if found := error_of(reply, response.status, endpoint.changes):
                    meter.failed(found)
        self.skew.record(response.headers.get("Date"), sent_ns)
        reply.more = response.headers.get("tr_cont", "") in _MORE
        return reply, response.status

    def _tr_id(self, endpoint: KisEndpoint) -> str:
        if not self.config.paper or endpoint.paper_tr_id is None:
            return endpoint.tr_id
        if not endpoint.paper_tr_id:
            raise NotSupportedError(f"KIS does not offer {endpoint.path} to paper keys", "EGW02006")
        return endpoint.paper_tr_id

    async def _issue_token(self) -> tuple[str, float]:
        body = {
            "grant_type": "client_credentials",
            "appkey": self._key.reveal(),
            "appsecret": self._secret.reveal(),
        }
        status, data = await self._exchange("POST", "/oauth2/tokenP", json=body)
        issued = _decode(data, IssuedToken)
        if issued.access_token:
            return issued.access_token, issued.expires_in
        if issued.error_code == TOKEN_TOO_SOON:
            raise OperationError(
                "KIS issues a token once a minute and has just issued one; retry in a minute"
            )
        raise reply_error(status, issued.error_code, issued.error_description, False)

    async def _exchange(self, method: str, path: str, **form: Any) -> tuple[int, bytes]:
        """Send a request without the rate limiter: KIS counts token requests separately."""
        with RequestMeter("kis", _name(path), self._clock) as meter:
            try:
                async with self._session.request(
                    method, self.config.rest + path, allow_redirects=False, **form
                ) as response:
                    status, data = response.status, await response.read()
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                raise no_reply_error(f"KIS at {self.config.rest}", error, False) from None
            if 300 <= status < 400:
                raise reply_error(status, "", "", False)
            if status >= 400:
                meter.failed(reply_error(status, "", "", False))
        if status == 429:
            self.limiter.on_throttled()  # the other requests share whatever is limited
        return status, data


def _name(path: str) -> str:
    """Return the endpoint's name in the metrics."""
    return path.rpartition("/")[2]


def _decode(data: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except UNDECODABLE:
        raise UnreachableError("the reply is not valid KIS JSON") from None


@asynccontextmanager
async def connect_kis(config: KisConfig, home: Path, clock: Clock) -> AsyncIterator[KisClient]:
    """Open the client of a key for quotes, orders and balances; `home` holds token and usage log.

    Raises RefusedError when another process uses the key.
    """
    key, _ = config.credentials()
    name = hashlib.sha256(key.reveal().encode()).hexdigest()[:16]
    usage_log = UsageLog(home / "budgets" / f"kis-{name}", clock)
    limiter = RateLimiter(config.key_limits, clock, usage_log)
    try:
        async with KisClient.open(config, limiter, clock, home / "tokens") as client:
            with exported_budget("kis", {"": limiter}):
                yield client
    finally:
        limiter.close()
