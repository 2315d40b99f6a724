"""KIS over REST: every request through the budget, every refusal named for what it means.

What KIS's message codes mean for the one who asked; HTTP status alone says little.

KIS answers HTTP 500 to a key that is over its limit and 200 to a rejected order, so the code
decides and the status only where there is none.

One key of KIS, ready for use: its ledger, its budget, its client. Everybody shares it.
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

TOKEN_ENDED = frozenset({"EGW00121", "EGW00123"})
TOKEN_TOO_SOON = "EGW00133"  # noqa: S105 - a message code
THROTTLED = frozenset({"EGW00201", "EGW00215"})
OUTCOME_UNKNOWN = frozenset({"EGW00301", "EGW00302"})
WRONG_SETTINGS = {
    "EGW00103": "venues.kis.app_key is not known to KIS",
    "EGW00105": "venues.kis.app_secret does not belong to the app key",
    "EGW02004": "venues.kis.app_key belongs to the other environment; see venues.kis.paper",
    "EGW02007": "venues.kis.app_key belongs to the other environment; see venues.kis.paper",
    "IGW00002": "venues.kis.account does not belong to the app key",
    "40910000": "the account is not registered for paper trading",
}
NOT_OFFERED = frozenset({"EGW02006", "90000000"})


def error_for_code(code: str, text: str, status: int, changes: bool) -> QtsError:
    """The error for a reply that is no success; `changes`: the request could move something."""
    told = f"KIS {code or f'HTTP {status}'}: {text.strip() or 'no explanation'}"
    if code in THROTTLED or (not code and status == 429):
        return RateLimitedError(told)
    if code in WRONG_SETTINGS:
        return RefusedError(f"{WRONG_SETTINGS[code]} ({told})")
    if code in NOT_OFFERED:
        return NotSupportedError(told, code)
    if code in OUTCOME_UNKNOWN or (not code and status >= 500):
        return OutcomeUnknownError(told) if changes else UnreachableError(told)
    return VenueRejectedError(told, code)


_MORE = frozenset({"F", "M"})
_HEADERS = {"content-type": "application/json; charset=utf-8", "custtype": "P"}


Values = Mapping[str, str] | Callable[[], Mapping[str, str]]


class KisEndpoint(msgspec.Struct, frozen=True):
    """One TR of KIS: where it is, and whether it changes anything there."""

    path: str
    tr_id: str
    paper_tr_id: str | None = None  # None: the same; "": not offered on paper
    method: Literal["GET", "POST"] = "GET"

    @property
    def changes(self) -> bool:
        return self.method == "POST"


class Reply(msgspec.Struct):
    """KIS's envelope; fields it adds later are ignored."""

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
    """A session with KIS; `open` and leave it."""

    def __init__(
        self, config: KisConfig, budget: RateLimiter, session: aiohttp.ClientSession
    ) -> None:
        self.config = config
        self.budget = budget
        self._session = session
        self._key, self._secret = config.credentials()
        self._tokens: TokenStore | None = None

    @classmethod
    @asynccontextmanager
    async def open(
        cls, config: KisConfig, budget: RateLimiter, clock: Clock, folder: Path
    ) -> AsyncIterator[Self]:
        """`folder` keeps the token for the next process."""
        key, _ = config.credentials()
        connector = aiohttp.TCPConnector(limit=64, keepalive_timeout=30)
        timeout = aiohttp.ClientTimeout(total=config.timeout_s)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            # One grant, one request: aiohttp would send a GET again when the connection breaks.
            session._retry_connection = False
            client = cls(config, budget, session)
            client._tokens = TokenStore(token_file(folder, key), clock, client._issue_token)
            try:
                yield client
            finally:
                await client._tokens.close()

    async def call(
        self,
        service: KisEndpoint,
        values: Values,
        priority: RequestPriority,
        *,
        next_page: bool = False,
        leaving: BeforeSend | None = None,
    ) -> Reply:
        """One request; a token that has ended is replaced, and the request made once more.

        Values given as a function are asked for when the budget has granted the request, so
        that what is most urgent then can be chosen. `leaving` is called as a body leaves.
        """
        tr_id = self._tr_id(service)
        assert self._tokens is not None, "a client is made by open()"  # noqa: S101
        token = await self._tokens.get()
        asked = (service, tr_id, values, priority, next_page, leaving)
        reply, status = await self._send(token, *asked)
        if reply.msg_cd in TOKEN_ENDED or reply.error_code in TOKEN_ENDED:
            token = await self._tokens.replace(token)
            reply, status = await self._send(token, *asked)
        if reply.rt_cd == "0":
            return reply
        code, text = reply.msg_cd or reply.error_code, reply.msg1 or reply.error_description
        error = error_for_code(code, text, status, service.changes)
        if isinstance(error, RateLimitedError):
            self.budget.on_throttled()
        raise error

    async def approval_key(self) -> str:
        """Opens the WebSocket; lives a day."""
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
        service: KisEndpoint,
        tr_id: str,
        values: Values,
        priority: RequestPriority,
        next_page: bool,
        leaving: BeforeSend | None,
    ) -> tuple[Reply, int]:
        headers = _HEADERS | {
            "authorization": f"Bearer {token}",
            "appkey": self._key.reveal(),
            "appsecret": self._secret.reveal(),
            "tr_id": tr_id,
            "tr_cont": "N" if next_page else "",
        }
        async with self.budget.request(priority):
            chosen = dict(values() if callable(values) else values)
            form: dict[str, Any] = (
                {"data": GuardedJsonBody(chosen, leaving)}
                if service.changes
                else {"params": chosen}
            )
            try:
                async with self._session.request(
                    service.method, self.config.rest + service.path, headers=headers, **form
                ) as response:
                    data = await response.read()
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                raise no_reply_error(f"KIS at {self.config.rest}", error, service.changes) from None
        try:
            reply = msgspec.json.decode(data, type=Reply)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return Reply(msg1="a reply that is not KIS's JSON"), max(response.status, 500)
        reply.more = response.headers.get("tr_cont", "") in _MORE
        return reply, response.status

    def _tr_id(self, service: KisEndpoint) -> str:
        if not self.config.paper or service.paper_tr_id is None:
            return service.tr_id
        if not service.paper_tr_id:
            raise NotSupportedError(f"KIS does not offer {service.path} to paper keys", "EGW02006")
        return service.paper_tr_id

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
                "KIS issues a token once a minute, and one was just issued; wait a minute"
            )
        raise error_for_code(issued.error_code, issued.error_description, status, False)

    async def _exchange(self, method: str, path: str, **form: Any) -> tuple[int, bytes]:
        """A request outside of the budget: KIS counts those for tokens by themselves."""
        try:
            async with self._session.request(method, self.config.rest + path, **form) as response:
                return response.status, await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise no_reply_error(f"KIS at {self.config.rest}", error, False) from None


def _decode(data: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise UnreachableError("KIS answered something that is not its JSON") from None


@asynccontextmanager
async def connect_kis(config: KisConfig, home: Path, clock: Clock) -> AsyncIterator[KisClient]:
    """`home` keeps the token and the ledger. Quotes, orders and balances use this one client."""
    key, _ = config.credentials()
    name = hashlib.sha256(key.reveal().encode()).hexdigest()[:16]
    budget = RateLimiter(
        config.key_limits, clock, UsageLog(home / "budgets" / f"kis-{name}", clock)
    )
    try:
        async with KisClient.open(config, budget, clock, home / "tokens") as client:
            yield client
    finally:
        budget.close()
