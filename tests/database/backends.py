"""What the tests do to a server from outside: end backends, and wait for a fact to hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from qts.domain import Secret


def name_of(url: Secret) -> str:
    return urlsplit(url.reveal()).path.lstrip("/")


async def end_backends(admin: Any, url: Secret) -> int:
    """End every session on this database and wait until they are gone."""
    return int(
        await admin.fetchval(
            "SELECT count(pg_terminate_backend(pid, 5000)) "
            "FROM pg_stat_activity WHERE datname = $1",
            name_of(url),
        )
    )


def end_backends_unseen(server: Secret, url: Secret) -> int:
    """The same while the event loop stands still, so that no connection learns of it."""

    async def end() -> int:
        admin = await asyncpg.connect(server.reveal())
        try:
            return await end_backends(admin, url)
        finally:
            await admin.close()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, end()).result(timeout=20)


async def backends(admin: Any, url: Secret) -> int:
    return int(
        await admin.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = $1", name_of(url)
        )
    )


async def until(fact: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a fact that another process makes true."""
    async with asyncio.timeout(60):
        while not await fact():  # noqa: ASYNC110 - the server gives no event for it
            await asyncio.sleep(0.01)
