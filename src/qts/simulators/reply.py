"""JSON as both venues send it."""

from __future__ import annotations

import msgspec
from aiohttp import web


def reply(values: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(values),
        status=status,
        headers=headers,
        content_type="application/json",
        charset="utf-8",
    )
