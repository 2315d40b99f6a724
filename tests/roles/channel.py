"""A connection that keeps what is published, for roles in one process."""

from __future__ import annotations

import asyncio
from typing import cast

from qts.roles import RoleConnection, RoleStatus


class Channel:
    def __init__(self) -> None:
        self.status = RoleStatus()
        self.sent: list[tuple[str, bytes]] = []
        self.is_up = True
        self.may_store = asyncio.Event()
        self.may_store.set()

    async def publish(self, subject: str, data: bytes) -> bool:
        if self.is_up:
            self.sent.append((subject, data))
        return self.is_up

    async def publish_durable(self, _stream: object, subject: str, data: bytes, _id: str) -> None:
        await self.may_store.wait()
        self.sent.append((subject, data))

    @property
    def connection(self) -> RoleConnection:
        return cast("RoleConnection", self)
