"""The door: every request is held against host, origin, session and CSRF before anything answers.

DNS rebinding lets any web page reach 127.0.0.1 under a name of its own: so the Host must be one of
ours. A page elsewhere can make the browser send requests here: so whatever changes something, and
every WebSocket, must come from our own origin, and an action must carry the session's token.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

from aiohttp import web

from qts import telemetry
from qts.dashboard.config import DashboardConfig
from qts.dashboard.session import COOKIE, LoginSessions

log = telemetry.logger("dashboard")

CSRF_HEADER = "X-QTS-CSRF"
LARGEST_BODY = 64 * 1024
OPEN = frozenset({"/login", "/page/login.js", "/page/style.css", "/page/icon.svg"})
_CHANGES_NOTHING = frozenset({"GET", "HEAD"})
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
    def __init__(self, config: DashboardConfig, port: int, sessions: LoginSessions) -> None:
        self._sessions = sessions
        self._hosts = _hosts(config, port)
        self._origins = {f"{config.scheme}://{host}" for host in self._hosts}
        self._secure = config.has_tls

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = self._refusal(request)
        if refusal is not None:
            if due := telemetry.log_every(10.0, f"refused {refusal.status}"):
                log.warning(
                    "a request was refused",
                    path=request.path,
                    status=refusal.status,
                    peer=request.remote,
                    **due,
                )
            response: web.StreamResponse = refusal
        else:
            response = await handler(request)
        if not response.prepared:
            response.headers.update(HEADERS)
            if self._secure:
                response.headers["Strict-Transport-Security"] = "max-age=31536000"
        return response

    def _refusal(self, request: web.Request) -> web.Response | None:
        if request.headers.get("Host", "").lower() not in self._hosts:
            return refused(421, "this host name is not served here; see dashboard.names")
        if not self._origin_is_ours(request):
            return refused(403, "the request comes from another origin")
        if request.path in OPEN:
            return None
        session = self._sessions.find(request.cookies.get(COOKIE))
        if session is None:
            if request.path == "/" and request.method == "GET":
                return web.Response(status=303, headers={"Location": "/login"})
            return refused(401, "log in first")
        if request.method not in _CHANGES_NOTHING:
            given = request.headers.get(CSRF_HEADER, "")
            if not hmac.compare_digest(given.encode("utf-8", "replace"), session.csrf.encode()):
                return refused(403, f"{CSRF_HEADER} is missing or wrong")
        return None

    def _origin_is_ours(self, request: web.Request) -> bool:
        """What a browser may leave out is only the origin of a plain look."""
        if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            # A link on another page may be followed to the front door, and no further.
            is_visit = request.headers.get("Sec-Fetch-Mode") == "navigate"
            if not (is_visit and request.method == "GET"):
                return False
        origin = request.headers.get("Origin")
        is_socket = request.headers.get("Upgrade", "").lower() == "websocket"
        if origin is None:
            return request.method in _CHANGES_NOTHING and not is_socket
        return origin.lower() in self._origins


def refused(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)


def _hosts(config: DashboardConfig, port: int) -> frozenset[str]:
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
