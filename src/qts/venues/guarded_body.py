"""What a request changes something with, and whether it may still go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp.abc import AbstractStreamWriter

BeforeSend = Callable[[], None]  # what it raises holds the request back


class GuardedJsonBody(aiohttp.JsonPayload):
    """JSON that asks, at the moment in which it goes into the connection, whether it may.

    Between a budget's grant and this moment a connection may have to be made, and whoever made
    it may have been stopped. A request without its body is none.
    """

    def __init__(self, values: dict[str, Any], leaving: BeforeSend | None) -> None:
        super().__init__(values)
        self._leaving = leaving

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        if self._leaving is not None:
            self._leaving()
        await super().write_with_length(writer, content_length)
