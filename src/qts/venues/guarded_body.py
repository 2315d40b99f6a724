"""Request body with a last check before it is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp.abc import AbstractStreamWriter

BeforeSend = Callable[[], None]  # raises to prevent the request


class GuardedJsonBody(aiohttp.JsonPayload):
    """JSON body that calls `before_send` at the moment it is written to the connection.

    Between the rate limiter's grant and this moment, connecting may take long and the process
    may be stopped. The venue ignores a request without its body.
    """

    def __init__(self, values: dict[str, Any], before_send: BeforeSend | None) -> None:
        super().__init__(values)
        self._before_send = before_send

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        if self._before_send is not None:
            self._before_send()
        await super().write_with_length(writer, content_length)
