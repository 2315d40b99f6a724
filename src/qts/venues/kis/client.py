"""KIS over REST: every request through the budget, every refusal named for what it means."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Self

import aiohttp
import msgspec

from qts.domain import Clock, OperationError, UnreachableError
from qts.venues.body import Body, Leaving
from qts.venues.budget import Budget
from qts.venues.config import KisConfig
from qts.venues.errors import NotOffered, Throttled, lost
from qts.venues.kis.codes import TOKEN_ENDED, TOKEN_TOO_SOON, error_of
from qts.venues.kis.token import TokenStore, token_file
from qts.venues.limits import Priority

_MORE = frozenset({"F", "M"})
_HEADERS = {"content-type": "application/json; charset=utf-8", "custtype": "P"}


Values = Mapping[str, str] | Callable[[], Mapping[str, str]]


class Service(msgspec.Struct, frozen=True):
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

    def __init__(self, config: KisConfig, budget: Budget, session: aiohttp.ClientSession) -> None:
        self.config = config
        self.budget = budget
        self._session = session
        self._key, self._secret = config.credentials()
        self._tokens: TokenStore | None = None

    @classmethod
    @asynccontextmanager
    async def open(
        cls, config: KisConfig, budget: Budget, clock: Clock, folder: Path
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
        service: Service,
        values: Values,
        priority: Priority,
        *,
        next_page: bool = False,
        leaving: Leaving | None = None,
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
        error = error_of(code, text, status, service.changes)
        if isinstance(error, Throttled):
            self.budget.refused()
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
        raise error_of(
            str(found.get("error_code", "")), str(found.get("error_description", "")), status, False
        )

    async def _send(
        self,
        token: str,
        service: Service,
        tr_id: str,
        values: Values,
        priority: Priority,
        next_page: bool,
        leaving: Leaving | None,
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
                {"data": Body(chosen, leaving)} if service.changes else {"params": chosen}
            )
            try:
                async with self._session.request(
                    service.method, self.config.rest + service.path, headers=headers, **form
                ) as response:
                    data = await response.read()
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                raise lost(f"KIS at {self.config.rest}", error, service.changes) from None
        try:
            reply = msgspec.json.decode(data, type=Reply)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return Reply(msg1="a reply that is not KIS's JSON"), max(response.status, 500)
        reply.more = response.headers.get("tr_cont", "") in _MORE
        return reply, response.status

    def _tr_id(self, service: Service) -> str:
        if not self.config.paper or service.paper_tr_id is None:
            return service.tr_id
        if not service.paper_tr_id:
            raise NotOffered(f"KIS does not offer {service.path} to paper keys", "EGW02006")
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
        raise error_of(issued.error_code, issued.error_description, status, False)

    async def _exchange(self, method: str, path: str, **form: Any) -> tuple[int, bytes]:
        """A request outside of the budget: KIS counts those for tokens by themselves."""
        try:
            async with self._session.request(method, self.config.rest + path, **form) as response:
                return response.status, await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise lost(f"KIS at {self.config.rest}", error, False) from None


def _decode(data: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise UnreachableError("KIS answered something that is not its JSON") from None
