"""REST client of KIS: requests pass the rate limiter, error replies become typed errors.

KIS replies HTTP 500 to a key that is over its limit and 200 to a rejected order, so the message
code decides, and the HTTP status only where there is no code.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Self

import aiohttp
import msgspec

from qts.domain import (
    Clock,
    OperationError,
    OutcomeUnknownError,
    QtsError,
    RefusedError,
    UnreachableError,
)
from qts.venues.config import KisConfig
from qts.venues.errors import (
    NotSupportedError,
    RateLimitedError,
    VenueRejectedError,
    no_reply_error,
)
from qts.venues.guarded_body import BeforeSend, GuardedJsonBody
from qts.venues.kis.token import TokenStore, token_file
from qts.venues.ratelimit.limiter import RateLimiter
from qts.venues.ratelimit.limits import RequestPriority
from qts.venues.ratelimit.usage_log import UsageLog

TOKEN_EXPIRED = frozenset({"EGW00121", "EGW00123"})
TOKEN_TOO_SOON = "EGW00133"  # noqa: S105 - a message code
RATE_LIMITED = frozenset({"EGW00201", "EGW00215"})
OUTCOME_UNKNOWN = frozenset({"EGW00301", "EGW00302"})
WRONG_SETTINGS = {
    "EGW00103": "venues.kis.app_key is not known to KIS",
    "EGW00105": "venues.kis.app_secret does not belong to the app key",
    "EGW02004": "venues.kis.app_key belongs to the other environment; see venues.kis.paper",
    "EGW02007": "venues.kis.app_key belongs to the other environment; see venues.kis.paper",
    "IGW00002": "venues.kis.account does not belong to the app key",
    "40910000": "the account is not registered for paper trading",
}
NOT_SUPPORTED = frozenset({"EGW02006", "90000000"})
_MORE = frozenset({"F", "M"})
_HEADERS = {"content-type": "application/json; charset=utf-8", "custtype": "P"}

Values = Mapping[str, str] | Callable[[], Mapping[str, str]]


def error_for_code(code: str, text: str, status: int, changes: bool) -> QtsError:
    """Return the error for an error reply; `changes`: the request could modify something."""
    message = f"KIS {code or f'HTTP {status}'}: {text.strip() or 'no explanation'}"
    if code in RATE_LIMITED or (not code and status == 429):
        return RateLimitedError(message)
    if code in WRONG_SETTINGS:
        return RefusedError(f"{WRONG_SETTINGS[code]} ({message})")
    if code in NOT_SUPPORTED:
        return NotSupportedError(message, code)
    if code in OUTCOME_UNKNOWN or (not code and status >= 500):
        return OutcomeUnknownError(message) if changes else UnreachableError(message)
    return VenueRejectedError(message, code)


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


class IssuedToken(msgspec.Struct):
    access_token: str = ""
    expires_in: float = 0.0
    error_code: str = ""
    error_description: str = ""


class KisClient:
    """Client of one KIS key, created by `open`."""

    def __init__(
        self, config: KisConfig, limiter: RateLimiter, session: aiohttp.ClientSession
    ) -> None:
        self.config = config
        self.limiter = limiter
        self._session = session
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
            client = cls(config, limiter, session)
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
        if reply.msg_cd in TOKEN_EXPIRED or reply.error_code in TOKEN_EXPIRED:
            token = await self._tokens.replace(token)
            reply, status = await self._send(token, *request)
        if reply.rt_cd == "0":
            return reply
        code, text = reply.msg_cd or reply.error_code, reply.msg1 or reply.error_description
        error = error_for_code(code, text, status, endpoint.changes)
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
        raise error_for_code(
            str(found.get("error_code", "")), str(found.get("error_description", "")), status, False
        )

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
            try:
                async with self._session.request(
                    endpoint.method, self.config.rest + endpoint.path, headers=headers, **form
                ) as response:
                    data = await response.read()
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                venue = f"KIS at {self.config.rest}"
                raise no_reply_error(venue, error, endpoint.changes) from None
        try:
            reply = msgspec.json.decode(data, type=Reply)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return Reply(msg1="the reply is not valid KIS JSON"), max(response.status, 500)
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
        raise error_for_code(issued.error_code, issued.error_description, status, False)

    async def _exchange(self, method: str, path: str, **form: Any) -> tuple[int, bytes]:
        """Send a request without the rate limiter: KIS counts token requests separately."""
        try:
            async with self._session.request(method, self.config.rest + path, **form) as response:
                return response.status, await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise no_reply_error(f"KIS at {self.config.rest}", error, False) from None


def _decode(data: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
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
            yield client
    finally:
        limiter.close()
