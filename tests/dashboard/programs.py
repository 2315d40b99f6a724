"""A program that uses the API of a dashboard with its token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import aiohttp
import msgspec

from qts.dashboard import ApiTokens, Operator, Role
from tests.dashboard.conftest import Site

CLI = Operator("cli tester", Role.TRADE, "local")


class Program:
    def __init__(self, session: aiohttp.ClientSession, token: str) -> None:
        self.session = session
        self.token = token
        self.headers: dict[str, str] = {}

    async def request(
        self, method: str, path: str, headers: dict[str, str] | None = None, **more: Any
    ) -> tuple[int, Any]:
        """Return the status and the decoded body; an error must be a problem object."""
        given = {"Authorization": f"Bearer {self.token}"} | (headers or {})
        async with self.session.request(method, f"/api/v1{path}", headers=given, **more) as reply:
            body = msgspec.json.decode(await reply.read())
            self.headers = dict(reply.headers)
            if reply.status != 200:
                assert reply.content_type == "application/problem+json"
                assert body["status"] == reply.status
                assert body["detail"]
            return reply.status, body

    async def get(self, path: str) -> Any:
        status, body = await self.request("GET", path)
        assert status == 200, body
        return body

    async def act(self, action: str, key: str | None = None, /, **fields: Any) -> tuple[int, Any]:
        headers = {"Idempotency-Key": key or str(uuid4())}
        return await self.request("POST", f"/actions/{action}", headers, json=fields)


@asynccontextmanager
async def program(site: Site, role: Role = Role.ADMIN, name: str = "") -> AsyncIterator[Program]:
    """Yield a program with a new token."""
    tokens = ApiTokens(site.database)
    _, secret = await tokens.create(name or f"p-{uuid4().hex[:8]}", role.label, 1, CLI)
    async with aiohttp.ClientSession(site.address) as session:
        yield Program(session, secret.reveal())
