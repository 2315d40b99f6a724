"""Errors of the API as problem objects (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from aiohttp import web

PREFIX = "/api/v1"
CONTENT_TYPE = "application/problem+json"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong: the name of the status, and one sentence."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str


class ProblemError(Exception):
    """Error with its own status and headers."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = headers or {}


def is_api(request: web.BaseRequest) -> bool:
    return request.path == PREFIX or request.path.startswith(f"{PREFIX}/")


def problem_response(
    status: int, detail: str, headers: Mapping[str, str] | None = None
) -> web.Response:
    problem = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail)
    return web.Response(
        body=msgspec.json.encode(problem),
        status=status,
        content_type=CONTENT_TYPE,
        headers=headers,
    )
