"""Web server of the dashboard: routes, login, files and data of the pages, a WebSocket with status.

It reads Valkey and PostgreSQL and runs in a separate process, so that it cannot delay trading.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import WSCloseCode, web

from qts import telemetry
from qts.dashboard.action_service import ForbiddenError
from qts.dashboard.actions import ActionLog
from qts.dashboard.api.openapi import ProblemError, query_types
from qts.dashboard.api.server import Api
from qts.dashboard.config import DashboardConfig
from qts.dashboard.guard import MAX_BODY_BYTES, MIN_COMPRESSED, Guard, error_response, refuse
from qts.dashboard.handlers import DashboardHandlers, RunViews, decode_action, decode_params
from qts.dashboard.hub import DashboardSources, Hub
from qts.dashboard.manual_orders import ManualOrderError
from qts.dashboard.pages import AccountParams
from qts.dashboard.queries import DashboardQueries
from qts.dashboard.session import (
    COOKIE,
    LoginSession,
    LoginSessions,
    LoginThrottle,
    Operator,
    Tokens,
)
from qts.domain import Clock, OperationError, RefusedError, SystemClock
from qts.events import SLA

log = telemetry.logger("dashboard")

PAGE = Path(__file__).parent / "page"
MAX_SOCKETS = 64
SEND_TIMEOUT_S = 10.0
# Routes of the pages below /api.
_QUERIES: dict[str, Callable[[DashboardQueries, Any], Awaitable[Any]]] = {
    "overview": DashboardQueries.overview,
    "runs": DashboardQueries.runs,
    "equity": DashboardQueries.equity,
    "names": DashboardQueries.names,
    "events": DashboardQueries.dead_letters,
    "orders": DashboardQueries.orders,
    "order": DashboardQueries.order,
    "trades": DashboardQueries.trades,
    "outbox": DashboardQueries.outbox,
    "logs": DashboardQueries.logs,
    "market": DashboardQueries.market,
    "backtests": DashboardQueries.backtests,
    "backtest": DashboardQueries.backtest,
    "router": DashboardQueries.router,
    "browsers": DashboardQueries.browsers,
    "settings": DashboardQueries.settings,
}


class Dashboard:
    """Web application; `serve` creates and runs it."""

    def __init__(
        self,
        config: DashboardConfig,
        sources: DashboardSources,
        tokens: Tokens,
        clock: Clock,
        port: int,
    ) -> None:
        self._config = config
        self._sources = sources
        self._tokens = tokens
        self._sessions = LoginSessions(lambda: tokens.key, clock, config.session_hours * 3600)
        self._throttle = LoginThrottle(clock)
        self._action_log = ActionLog(sources.database)
        self._sockets: set[web.WebSocketResponse] = set()
        self._clock = clock
        self.failed = asyncio.Event()
        self._views = RunViews(sources, clock)
        self.hub = self._views.own.hub
        self._handlers = DashboardHandlers(self._views, clock)
        self._api = Api(sources.database, self._handlers, config.api_requests_per_minute, clock)
        guard = Guard(config, port, self._sessions)
        self.app = web.Application(
            middlewares=[guard.check, _convert_errors, self._api.check],
            client_max_size=MAX_BODY_BYTES,
        )
        self._add_routes(self.app.router)

    def _add_routes(self, router: web.UrlDispatcher) -> None:
        StaticFiles(PAGE).add_routes(router)
        router.add_post("/login", self._login)
        router.add_post("/logout", self._logout)
        router.add_get("/api/me", self._me)
        for name, query in _QUERIES.items():
            router.add_get(f"/api/{name}", self._reader(query))
        router.add_get("/api/trades.csv", self._trades_csv)
        router.add_post("/api/action", self._act)
        router.add_get("/api/live", self._socket)
        self._api.add_routes(router)

    def _reader(
        self, query: Callable[[DashboardQueries, Any], Awaitable[Any]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        params, _ = query_types(query)

        async def handle(request: web.Request) -> web.Response:
            body = await self._handlers.read(query, params, request.query)
            return web.Response(body=body, content_type="application/json")

        return handle

    async def _login(self, request: web.Request) -> web.Response:
        address = request.remote or "?"
        if not self._throttle.is_allowed(address):
            return error_response(429, "too many failed logins; wait a minute")
        try:
            body = msgspec.json.decode(await request.read(), type=dict[str, str])
        except msgspec.DecodeError:
            body = {}
        role = self._tokens.role_of(body.get("token", ""))
        if role is None:
            self._throttle.record_failure(address)
            log.warning("login failed", peer=address)
            await self._log_login("?", "none", address, done=False)
            return error_response(401, "unknown token")
        session, cookie = self._sessions.begin(role)
        await self._log_login(session.actor, role.label, address, done=True)
        response = web.json_response({"role": role.label})
        response.set_cookie(
            COOKIE,
            cookie,
            max_age=int(self._sessions.duration_s),
            path="/",
            httponly=True,
            samesite="Strict",
            secure=self._config.has_tls,
        )
        return response

    async def _log_login(self, actor: str, role: str, address: str, *, done: bool) -> None:
        try:
            await self._action_log.login(actor, role, address, "DONE" if done else "REFUSED")
        except OperationError as error:  # the operator must get in while the database is down
            log.warning("login not recorded", error=str(error))

    async def _logout(self, request: web.Request) -> web.Response:
        self._sessions.end(self._session(request))
        response = web.json_response({})
        response.del_cookie(COOKIE, path="/")
        return response

    async def _me(self, request: web.Request) -> web.Response:
        session = self._session(request)
        return _json(
            {
                "role": session.role.label,
                "actor": session.actor,
                "csrf": session.csrf,
                "sla": SLA,
                "push_key": self._sources.push_key,
            }
        )

    def _session(self, request: web.Request) -> LoginSession:
        session = self._sessions.find(request.cookies.get(COOKIE))
        if session is None:  # it ended since the guard checked it
            raise web.HTTPUnauthorized
        return session

    async def _trades_csv(self, request: web.Request) -> web.Response:
        text = await self._handlers.trades_csv(request.query)
        name = {"Content-Disposition": 'attachment; filename="qts-trades.csv"'}
        return web.Response(text=text, content_type="text/csv", charset="utf-8", headers=name)

    async def _act(self, request: web.Request) -> web.Response:
        action = decode_action(await request.read())
        session = self._session(request)
        operator = Operator(session.actor, session.role, request.remote or "?")
        account = decode_params(request.query, AccountParams).account
        done = await self._handlers.act(action, operator, account)
        return _json({"done": done.message})

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        """Answer each message of a page with the next state."""
        if len(self._sockets) >= MAX_SOCKETS:
            return error_response(503, f"{MAX_SOCKETS} pages are open already")
        account = decode_params(request.query, AccountParams).account
        await self._views.get(account)  # refuses one that is unknown
        page = web.WebSocketResponse(heartbeat=20.0, max_msg_size=1024)
        if not page.can_prepare(request).ok:
            return error_response(400, "expected a WebSocket request")
        await page.prepare(request)
        self._sockets.add(page)
        try:
            await self._answer(page, request, account)
        finally:
            self._sockets.discard(page)
        return page

    async def _answer(
        self, page: web.WebSocketResponse, request: web.Request, account: str
    ) -> None:
        cookie, version = request.cookies.get(COOKIE), -1
        hub: Hub | None = None
        try:
            async for _ in page:
                requested_ns = self._clock.monotonic_ns()
                found = (await self._views.get(account)).hub
                if found is not hub:  # it was closed while the page was hidden
                    hub, version = found, -1
                await hub.wait_newer(version)
                if self.failed.is_set():  # what the hub holds is not followed any more
                    await page.close(code=WSCloseCode.GOING_AWAY)
                    return
                if self._sessions.find(cookie) is None:
                    await page.close(code=4401, message=b"log in again")
                    return
                text = hub.answer(requested_ns, with_history=version == -1)
                version = hub.version
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    await page.send_str(text.decode())
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        except (OperationError, RefusedError) as error:
            log.warning("view of a run not opened", account=account, error=str(error))
            await page.close(code=WSCloseCode.GOING_AWAY)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Read the status until the context is left."""
        task = asyncio.create_task(self.hub.run())
        task.add_done_callback(self._on_hub_done)
        try:
            async with self._views.closing():
                yield
        finally:
            task.cancel()
            await asyncio.wait({task})
            await self.close_sockets()

    def _on_hub_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("status reader failed; dashboard ends", exc_info=error)
            self.failed.set()

    async def close_sockets(self) -> None:
        for page in list(self._sockets):
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await page.close(code=WSCloseCode.GOING_AWAY)


@asynccontextmanager
async def serve(
    config: DashboardConfig, sources: DashboardSources, tokens: Tokens, listening: socket.socket
) -> AsyncIterator[Dashboard]:
    """Serve the dashboard on a listening socket until the context is left.

    `Dashboard.failed` is set when the reader of the status failed: the pages show nothing new then,
    and the caller must end.
    """
    dashboard = Dashboard(config, sources, tokens, SystemClock(), listening.getsockname()[1])
    runner = web.AppRunner(dashboard.app, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        async with dashboard.running():
            await web.SockSite(runner, listening, ssl_context=_tls(config)).start()
            yield dashboard
    finally:
        await runner.cleanup()


def _tls(config: DashboardConfig) -> ssl.SSLContext | None:
    if config.certificate is None or config.key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.certificate, config.key)
    except (OSError, ssl.SSLError) as error:
        raise RefusedError(
            f"dashboard.certificate, dashboard.key: cannot be used: {error}"
        ) from None
    return context


@web.middleware
async def _convert_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Convert errors to JSON responses that a page can show, or a program can read."""
    headers: Mapping[str, str] = {}
    try:
        return await handler(request)
    except ProblemError as error:
        status, text, headers = error.status, str(error), error.headers
    except ForbiddenError as error:
        status, text = 403, str(error)
    except RefusedError as error:
        status, text = 422, str(error)
    except ManualOrderError as error:
        status, text = 409, str(error)
    except OperationError as error:
        status, text = 503, str(error)
    except web.HTTPException as error:
        status, text = error.status, error.reason
        headers = {name: error.headers[name] for name in ("Allow",) if name in error.headers}
    except Exception:
        log.error("request failed", path=request.path, exc_info=True)
        status, text = 500, "internal error; see the dashboard's log"
    return refuse(request, status, text, headers)


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


_CONTENT_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_IMMUTABLE = {"Cache-Control": "private, max-age=31536000, immutable"}
_Handler = Callable[[web.Request], Awaitable[web.Response]]


class StaticFiles:
    """Files of the pages, compressed once and cached under a path that names their content.

    The modules import each other by relative paths, so that one version in the path of the first of
    them is in the path of all; a file that changes changes the version, and a browser loads it
    again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names = [
            path.name for path in sorted(folder.iterdir()) if path.suffix in _CONTENT_TYPES
        ]
        digest = hashlib.sha256()
        for name in self._names:
            digest.update(name.encode() + b"\0" + (folder / name).read_bytes())
        self.version = digest.hexdigest()[:16]

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/", self._handler("index.html"))
        router.add_get("/login", self._handler("login.html"))
        router.add_get("/worker.js", self._handler("worker.js"))  # its scope is every page
        for name in self._names:
            router.add_get(f"/page/{name}", self._handler(name))
            router.add_get(f"/page/{self.version}/{name}", self._handler(name, _IMMUTABLE))

    def _handler(self, name: str, headers: dict[str, str] | None = None) -> _Handler:
        path = self._folder / name
        content = path.read_bytes()
        if name == "index.html":
            content = content.replace(b'="/page/', f'="/page/{self.version}/'.encode())
        compressed = gzip.compress(content, mtime=0) if len(content) > MIN_COMPRESSED else None
        content_type = _CONTENT_TYPES.get(path.suffix, "text/html")

        async def handle(request: web.Request) -> web.Response:
            given = {"Vary": "Accept-Encoding", **(headers or {})}
            body = content
            if compressed is not None and "gzip" in request.headers.get("Accept-Encoding", ""):
                given["Content-Encoding"] = "gzip"
                body = compressed
            return web.Response(
                body=body, content_type=content_type, charset="utf-8", headers=given
            )

        return handle
