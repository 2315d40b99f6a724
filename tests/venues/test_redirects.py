"""A venue that redirects: no key and no order reaches the second address."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from qts.domain import OutcomeUnknownError, Secret, SystemClock, UnreachableError
from qts.venues import (
    KisClient,
    KisStream,
    RequestPriority,
    UpbitClient,
    UpbitConfig,
    UpbitStream,
)
from qts.venues.kis import KisEndpoint
from tests.venues.kis import (
    ScriptedServer,
    SleepRecorder,
    config_for,
    json_response,
    open_client,
)

ORDER = KisEndpoint("/uapi/order", "TTTC0012U", "VTTC0012U", method="POST")
READ = KisEndpoint("/uapi/read", "FHKST01010100")
STATUSES = (301, 302, 303, 307, 308)


class SecondServer(ScriptedServer):
    """Destination of the redirects: replies with success to whatever arrives."""

    def __init__(self) -> None:
        super().__init__(lambda _: json_response({"rt_cd": "0", "approval_key": "x"}))

    @property
    def was_reached(self) -> bool:
        return self.requests + self.tokens > 0


class RedirectingServer(ScriptedServer):
    """Redirects every request, or every one but those for a token."""

    def __init__(self, status: int, to: str, *, tokens: bool = False) -> None:
        super().__init__(lambda request: web.Response(status=status, headers=self._to(request)))
        self._second = to
        self.replies: dict[str, dict[str, str]] = {}
        self._redirects_tokens = tokens

    def _to(self, request: web.Request) -> dict[str, str]:
        return {"Location": f"{self._second}{request.path}"}

    async def _reply(self, request: web.Request) -> web.Response:
        if (reply := self.replies.get(request.path)) is not None:
            return json_response(reply)
        return self._answer(request) if self._redirects_tokens else await super()._reply(request)


@asynccontextmanager
async def redirected_kis(
    status: int, folder: Path, *, tokens: bool = False
) -> AsyncIterator[tuple[KisClient, SecondServer]]:
    async with (
        SecondServer() as second,
        RedirectingServer(status, second.url, tokens=tokens) as first,
        open_client(config_for(first.url), folder) as client,
    ):
        yield client, second


@pytest.mark.parametrize("status", STATUSES)
async def test_kis_requests_are_not_redirected(status: int, tmp_path: Path) -> None:
    async with redirected_kis(status, tmp_path) as (client, second):
        for endpoint, expected in ((READ, UnreachableError), (ORDER, OutcomeUnknownError)):
            with pytest.raises(expected, match=f"KIS HTTP {status}: a redirect") as caught:
                await client.call(endpoint, {}, RequestPriority.ORDER)
            assert type(caught.value) is expected
        assert not second.was_reached


@pytest.mark.parametrize("status", STATUSES)
async def test_the_key_of_a_token_request_is_not_redirected(status: int, tmp_path: Path) -> None:
    async with redirected_kis(status, tmp_path, tokens=True) as (client, second):
        with pytest.raises(UnreachableError, match=f"KIS HTTP {status}: a redirect"):
            await client.call(ORDER, {}, RequestPriority.ORDER)
        with pytest.raises(UnreachableError, match=f"KIS HTTP {status}: a redirect"):
            await client.approval_key()
        assert not second.was_reached


@pytest.mark.parametrize("status", STATUSES)
async def test_upbit_requests_are_not_redirected(status: int) -> None:
    async with SecondServer() as second, RedirectingServer(status, second.url) as first:
        config = UpbitConfig(
            access_key=Secret("access" * 6), secret_key=Secret("secret" * 6), url=first.url
        )
        async with UpbitClient.open(config, SystemClock()) as client:
            with pytest.raises(UnreachableError, match=f"Upbit HTTP {status}: a redirect"):
                await client.call("GET", "/v1/accounts", [], "default", RequestPriority.ORDER)
            with pytest.raises(OutcomeUnknownError, match=f"Upbit HTTP {status}: a redirect"):
                await client.call("POST", "/v1/orders", [], "order", RequestPriority.ORDER)
            with pytest.raises(OutcomeUnknownError, match=f"Upbit HTTP {status}: a redirect"):
                await client.call("DELETE", "/v1/order", [], "default", RequestPriority.ORDER)
        assert not second.was_reached


@pytest.mark.parametrize("venue", ["kis", "upbit"])
async def test_the_key_of_a_stream_is_not_redirected(venue: str, tmp_path: Path) -> None:
    """The handshake of a WebSocket is a GET, which aiohttp would follow."""
    clock = SleepRecorder()
    async with SecondServer() as second, RedirectingServer(307, second.url) as first:
        async with contextlib.AsyncExitStack() as stack:
            stream: KisStream | UpbitStream
            if venue == "kis":
                first.replies["/oauth2/Approval"] = {"approval_key": "secret"}
                kis = await stack.enter_async_context(open_client(config_for(first.url), tmp_path))
                stream = KisStream(kis, clock, lambda _quote: None)
            else:
                config = UpbitConfig(
                    access_key=Secret("access" * 6),
                    secret_key=Secret("secret" * 6),
                    stream_url=first.url.replace("http", "ws"),
                )
                upbit = await stack.enter_async_context(UpbitClient.open(config, SystemClock()))
                stream = UpbitStream(
                    upbit, clock, lambda _quote: None, on_order=lambda _order: None
                )
            task = asyncio.create_task(stream.run())
            await clock.next_sleep()  # it waits to connect again
            task.cancel()
            await asyncio.wait({task})
        assert not second.was_reached
