"""Termination of backends from outside, and waiting for a condition."""

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
    """Terminate every session on this database and wait until they are gone."""
    return int(
        await admin.fetchval(
            "SELECT count(pg_terminate_backend(pid, 5000)) "
            "FROM pg_stat_activity WHERE datname = $1",
            name_of(url),
        )
    )


def end_backends_unnoticed(server: Secret, url: Secret) -> int:
    """Do the same while the event loop is blocked, so that no connection notices it."""

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


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Poll until the condition is true."""
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 - the server sends no event for it
            await asyncio.sleep(0.01)
