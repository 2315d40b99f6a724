"""A way to a server that can be cut without a word: a switch that died, a firewall that drops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple


class Line(NamedTuple):
    """A way to a server that can be cut: bytes are taken and not passed on until it heals."""

    port: int
    is_open: asyncio.Event


async def open_line(stack: AsyncExitStack, connect: Callable[[], Awaitable[Any]]) -> Line:
    """Listen on a port; each connection to it gets one of `connect`."""
    is_open = asyncio.Event()
    is_open.set()

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                await is_open.wait()
                sink.write(data)
                await sink.drain()
        await is_open.wait()
        sink.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await is_open.wait()
        try:
            there = await connect()
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    stack.callback(server.close)
    return Line(server.sockets[0].getsockname()[1], is_open)
