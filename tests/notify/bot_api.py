"""Telegram Bot API as a local server: updates until confirmed, answers, errors on request."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from qts.domain import Clock, SystemClock
from tests.notify.receiver import TIMEOUT_S

TOKEN = "123456:canary-AAE5uXw"
OWNER, CHAT = 42, 4200
CUT = -1  # an answer: close the connection instead
METHODS = ("getUpdates", "sendMessage", "answerCallbackQuery", "editMessageText")


class BotApi:
    def __init__(self, clock: Clock | None = None, first_id: int = 1000) -> None:
        self.clock = clock or SystemClock()
        self.url = ""
        self.calls: list[tuple[str, dict[str, Any]]] = []  # but for getUpdates
        self.failures: dict[str, deque[int]] = defaultdict(deque)  # statuses of the next calls
        self.offsets: list[int | None] = []
        self.history: list[dict[str, Any]] = []  # all updates ever sent
        self._unconfirmed: list[dict[str, Any]] = []
        self._next_id = first_id
        self._message_id = 0
        self._changed = asyncio.Condition()

    # --- what users do --------------------------------------------------------------------------

    async def send(
        self, *texts: str, user: int | None = OWNER, chat: int = CHAT, age_s: float = 0.0
    ) -> None:
        for text in texts:
            message = self._message(chat, text) | ({"from": {"id": user}} if user else {})
            message["date"] = int(self.clock.now().timestamp() - age_s)
            await self.deliver({"update_id": self._new_id(), "message": message})

    async def press(
        self, verb: str = "confirm", user: int = OWNER, chat: int = CHAT, data: str = ""
    ) -> None:
        """Press a button of the last question."""
        press = {
            "id": f"press {self._next_id}",
            "from": {"id": user},
            "message": self._message(chat, "?"),
            "data": data or f"{verb}:{self.code}",
        }
        await self.deliver({"update_id": self._new_id(), "callback_query": press})

    async def deliver(self, *updates: dict[str, Any]) -> None:
        async with self._changed:
            self.history += [each for each in updates if each not in self.history]
            self._unconfirmed += updates
            self._changed.notify_all()

    # --- what the bot did -----------------------------------------------------------------------

    def texts(self, method: str = "sendMessage") -> list[str]:
        return [body.get("text", "") for name, body in self.calls if name == method]

    @property
    def code(self) -> str:
        """The code of the last question."""
        buttons = [body["reply_markup"] for _, body in self.calls if "reply_markup" in body]
        data: str = buttons[-1]["inline_keyboard"][0][0]["callback_data"]
        return data.partition(":")[2]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S), self._changed:
            await self._changed.wait_for(condition)

    async def until_said(self, count: int, method: str = "sendMessage") -> list[str]:
        await self.until(lambda: len(self.texts(method)) >= count)
        return self.texts(method)

    # --- the server -----------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        if request.match_info["token"] != TOKEN or method not in METHODS:
            return _failed(404)
        body = await request.json()
        if self.failures[method]:
            status = self.failures[method].popleft()
            if status == CUT:
                assert request.transport
                request.transport.close()
                return web.Response()
            return _failed(status)
        if method == "getUpdates":
            return await self._updates(body)
        async with self._changed:
            self.calls.append((method, body))
            self._changed.notify_all()
        return web.json_response({"ok": True, "result": True})

    async def _updates(self, body: dict[str, Any]) -> web.Response:
        offset = body.get("offset")
        async with self._changed:
            self.offsets.append(offset)
            if offset is not None:
                kept = [each for each in self._unconfirmed if each["update_id"] >= offset]
                self._unconfirmed = kept
            self._changed.notify_all()
            try:
                async with asyncio.timeout(body["timeout"]):
                    await self._changed.wait_for(lambda: self._unconfirmed)
            except TimeoutError:
                pass
            return web.json_response({"ok": True, "result": self._unconfirmed[:100]})

    def _message(self, chat: int, text: str) -> dict[str, Any]:
        self._message_id += 1
        found = {"message_id": self._message_id, "date": 1, "text": text}
        return found | {"chat": {"id": chat, "type": "private"}}

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[BotApi]:
        app = web.Application()
        app.router.add_post("/bot{token}/{method}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            address: Any = runner.addresses[0]
            self.url = f"http://127.0.0.1:{address[1]}"
            yield self
        finally:
            await runner.cleanup()


def _failed(status: int) -> web.Response:
    body: dict[str, Any] = {"ok": False, "error_code": status, "description": f"no: {TOKEN}"}
    if status == 429:
        body["parameters"] = {"retry_after": 7}
    return web.json_response(body, status=status)
