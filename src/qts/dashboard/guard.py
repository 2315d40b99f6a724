"""Checks of every request before its handler: host, origin, session and CSRF token.

DNS rebinding lets any web page reach 127.0.0.1 under its own name, so the Host must be configured.
A page of another site can make the browser send requests here, so requests that change something,
and every WebSocket, must come from the dashboard's origin, and an action must carry the session's
token. Programs (/api/v1) carry a bearer token instead, which no browser adds by itself.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from ipaddress import ip_address

from aiohttp import web

from qts import telemetry
from qts.dashboard.api.openapi import is_api, problem_response
from qts.dashboard.config import DashboardConfig
from qts.dashboard.session import COOKIE, LoginSessions

log = telemetry.logger("dashboard")

CSRF_HEADER = "X-QTS-CSRF"
MAX_BODY_BYTES = 64 * 1024
MIN_COMPRESSED = 1024  # bytes
PUBLIC_PATHS = frozenset({"/login", "/page/login.js", "/page/style.css", "/page/icon.svg"})
_SAFE_METHODS = frozenset({"GET", "HEAD"})
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Guard:
    """Middleware that refuses requests which fail a check and adds security headers.

    Larger answers are compressed where the browser accepts it.
    """

    def __init__(self, config: DashboardConfig, port: int, sessions: LoginSessions) -> None:
        self._sessions = sessions
        self._hosts = allowed_hosts(config, port)
        self._origins = {f"{config.scheme}://{host}" for host in self._hosts}
        self._secure = config.has_tls

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = self._refusal(request)
        if refusal is not None:
            if due := telemetry.log_every(10.0, f"refused {refusal.status}"):
                log.warning(
                    "request refused",
                    path=request.path,
                    status=refusal.status,
                    peer=request.remote,
                    **due,
                )
            response: web.StreamResponse = refusal
        else:
            response = await handler(request)
        if not response.prepared:
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            body = response.body if isinstance(response, web.Response) else None
            is_plain = "Content-Encoding" not in response.headers
            if is_plain and isinstance(body, bytes) and len(body) > MIN_COMPRESSED:
                response.enable_compression()
            if self._secure:
                response.headers["Strict-Transport-Security"] = "max-age=31536000"
        return response

    def _refusal(self, request: web.Request) -> web.Response | None:
        if request.headers.get("Host", "").lower() not in self._hosts:
            return refuse(request, 421, "unknown host name; add it to dashboard.names")
        if not self._is_same_origin(request):
            return refuse(request, 403, "request from another origin")
        if is_api(request):  # its own check asks for a token; no cookie lets in
            return None
        if request.path in PUBLIC_PATHS:
            return None
        session = self._sessions.find(request.cookies.get(COOKIE))
        if session is None:
            if request.path == "/" and request.method == "GET":
                return web.Response(status=303, headers={"Location": "/login"})
            return error_response(401, "not logged in")
        if request.method not in _SAFE_METHODS:
            given = request.headers.get(CSRF_HEADER, "")
            if not hmac.compare_digest(given.encode("utf-8", "replace"), session.csrf.encode()):
                return error_response(403, f"{CSRF_HEADER} is missing or wrong")
        return None

    def _is_same_origin(self, request: web.Request) -> bool:
        """Return whether the origin matches; only a GET or HEAD may omit it."""
        if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            # A link on another site may open a page.
            is_navigation = request.headers.get("Sec-Fetch-Mode") == "navigate"
            if not (is_navigation and request.method == "GET"):
                return False
        origin = request.headers.get("Origin")
        is_socket = request.headers.get("Upgrade", "").lower() == "websocket"
        if origin is None:  # programs have none, and no cookie that a page could use
            return (request.method in _SAFE_METHODS and not is_socket) or is_api(request)
        return origin.lower() in self._origins


def refuse(
    request: web.Request, status: int, text: str, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return the response to a request that failed: a problem object for programs."""
    if is_api(request):
        return problem_response(status, text, headers)
    return error_response(status, text)


def error_response(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)


def allowed_hosts(config: DashboardConfig, port: int) -> frozenset[str]:
    """Return the values of the Host header that requests may have."""
    names = {*config.names}
    if config.is_local:
        names |= {"127.0.0.1", "localhost", "[::1]"}
    try:
        if not (address := ip_address(config.host)).is_unspecified:
            names.add(f"[{address}]" if address.version == 6 else str(address))
    except ValueError:
        names.add(config.host)
    usual = 443 if config.has_tls else 80
    with_port = {f"{name.lower()}:{port}" for name in names}
    return frozenset(with_port | ({name.lower() for name in names} if port == usual else set()))
