"""Client of the KIS simulator, and a KIS server with scripted replies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import msgspec
from aiohttp import web

from qts.domain import Clock, ManualClock, Secret, SystemClock
from qts.simulators import KisKey, KisSimulator
from qts.venues import KisClient, KisConfig, RateLimitConfig, RateLimiter

KEY = KisKey()
FAST = RateLimitConfig(per_second=18)


def config_for(url: str, **changes: Any) -> KisConfig:
    settings: dict[str, Any] = {
        "app_key": Secret(KEY.app_key),
        "app_secret": Secret(KEY.app_secret),
        "hts_id": Secret(KEY.hts_id),
        "account": Secret(KEY.account),
        "url": url,
        "stream_url": url.replace("http", "ws"),
        "limits": FAST,
    }
    return KisConfig(**settings | changes)


@asynccontextmanager
async def client_of(
    simulator: KisSimulator, folder: Path, **changes: Any
) -> AsyncIterator[KisClient]:
    async with open_client(config_for(simulator.url, **changes), folder) as client:
        yield client


@asynccontextmanager
async def open_client(
    config: KisConfig, folder: Path, clock: Clock | None = None
) -> AsyncIterator[KisClient]:
    limiter = RateLimiter(config.key_limits, SystemClock())
    try:
        async with KisClient.open(config, limiter, clock or SystemClock(), folder) as client:
            yield client
    finally:
        limiter.close()


class SleepRecorder(ManualClock):
    """Clock that records the duration of each sleep."""

    def __init__(self) -> None:
        super().__init__()
        self._sleeps: asyncio.Queue[float] = asyncio.Queue()

    async def sleep(self, seconds: float) -> None:
        self._sleeps.put_nowait(seconds)
        await super().sleep(seconds)

    async def next_sleep(self) -> float:
        return await asyncio.wait_for(self._sleeps.get(), 60)


class ScriptedServer:
    """Server that issues tokens and replies to every other request with `answer`."""

    def __init__(self, answer: Callable[[web.Request], web.Response]) -> None:
        self.tokens = 0
        self.issuing = asyncio.Event()  # a token was requested
        self.may_issue = asyncio.Event()
        self.may_issue.set()
        self.token_status = 200
        self.requests = 0
        self._answer = answer
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._reply)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _reply(self, request: web.Request) -> web.Response:
        if request.path == "/oauth2/tokenP":
            self.tokens += 1
            self.issuing.set()
            await self.may_issue.wait()
            token = {"access_token": f"token-{self.tokens}", "expires_in": 86400}
            return json_response(token if self.token_status == 200 else {}, self.token_status)
        self.requests += 1
        return self._answer(request)


def json_response(body: object, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(body), status=status, content_type="application/json"
    )
