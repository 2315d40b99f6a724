"""The web server: routes, login, pages' data, and a WebSocket that tells the state.

It reads Valkey and PostgreSQL, and runs in a process of its own: nothing that happens here can
hold up what trades.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import WSCloseCode, web

from qts import telemetry
from qts.cache import CacheConfig, CacheStore
from qts.dashboard.action_log import ActionLog
from qts.dashboard.actions import ActionService, ForbiddenError, decode
from qts.dashboard.config import USUAL_PORT, DashboardConfig
from qts.dashboard.guard import LARGEST_BODY, Guard, refused
from qts.dashboard.hub import Hub
from qts.dashboard.queries import DashboardQueries, QueryCache
from qts.dashboard.session import COOKIE, LoginSession, LoginSessions, LoginThrottle
from qts.dashboard.tokens import Tokens
from qts.database import Database
from qts.domain import Clock, OperationError, RefusedError, SystemClock
from qts.events import SLA

log = telemetry.logger("dashboard")

PAGE = Path(__file__).parent / "page"
SOCKETS = 64  # open at once
SEND_S = 10.0  # a page that takes nothing for so long is gone
_KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


class DashboardSources(msgspec.Struct, frozen=True, kw_only=True):
    """What the pages are made of."""

    database: Database
    store: CacheStore
    cache: CacheConfig
    home: Path
    record: Path
    settings: list[dict[str, Any]]  # name, value (secrets hidden), default, description
    push_key: str = ""  # the public one, as browsers want it; empty: there is no web push


class Dashboard:
    """Use `serve`."""

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
        self._attempts = LoginThrottle(clock)
        self._audit = ActionLog(sources.database)
        self._answers = QueryCache(clock)
        self._sockets: set[web.WebSocketResponse] = set()
        self.hub = Hub(sources.store, sources.cache.prefix, sources.database, clock)
        self._actions = ActionService(sources.database, self.hub.live)
        self._looks = DashboardQueries(
            sources.database, sources.store, sources.cache, sources.home, sources.record, clock
        )
        guard = Guard(config, port, self._sessions)
        self.app = web.Application(middlewares=[guard.check, _told], client_max_size=LARGEST_BODY)
        self._add_routes(self.app.router)

    def _add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/", _file("index.html"))
        router.add_get("/login", _file("login.html"))
        router.add_get("/worker.js", _file("worker.js"))  # up here it may serve every page
        router.add_post("/login", self._login)
        router.add_post("/logout", self._logout)
        for path in sorted(PAGE.iterdir()):
            if path.suffix in _KINDS:
                router.add_get(f"/page/{path.name}", _file(path.name))
        router.add_get("/api/me", self._me)
        router.add_get("/api/settings", self._settings)
        looks = self._looks
        for look in (
            looks.overview,
            looks.events,
            looks.orders,
            looks.order,
            looks.outbox,
            looks.market,
            looks.backtests,
            looks.backtest,
            looks.router,
            looks.browsers,
        ):
            router.add_get(f"/api/{look.__name__}", self._shared(look))
        router.add_post("/api/action", self._act)
        router.add_get("/api/live", self._socket)

    def _shared(
        self, look: Callable[[Mapping[str, str]], Awaitable[Any]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        """Pages that ask the same at about the same time share one answer."""

        async def answer(request: web.Request) -> web.Response:
            async def made() -> bytes:
                return msgspec.json.encode(await look(request.query))

            body = await self._answers.get(request.path_qs, made)
            return web.Response(body=body, content_type="application/json")

        return answer

    # --- coming and going -----------------------------------------------------------------------

    async def _login(self, request: web.Request) -> web.Response:
        address = request.remote or "?"
        if not self._attempts.may(address):
            return refused(429, "too many logins failed; wait a minute")
        try:
            given = msgspec.json.decode(await request.read(), type=dict[str, str])
        except msgspec.DecodeError:
            given = {}
        role = self._tokens.role_of(given.get("token", ""))
        if role is None:
            self._attempts.failed(address)
            log.warning("a login failed", peer=address)
            await self._write_login("?", "none", address, done=False)
            return refused(401, "this token is not known here")
        session, cookie = self._sessions.begin(role)
        await self._write_login(session.actor, role.word, address, done=True)
        response = web.json_response({"role": role.word})
        response.set_cookie(
            COOKIE,
            cookie,
            max_age=int(self._sessions.lasts_s),
            path="/",
            httponly=True,
            samesite="Strict",
            secure=self._config.has_tls,
        )
        return response

    async def _write_login(self, actor: str, role: str, address: str, *, done: bool) -> None:
        try:
            await self._audit.login(actor, role, address, "DONE" if done else "REFUSED")
        except OperationError as error:  # who comes to look at a broken database must be let in
            log.warning("a login was not written down", error=str(error))

    async def _logout(self, request: web.Request) -> web.Response:
        self._sessions.end(self._session(request))
        response = web.json_response({})
        response.del_cookie(COOKIE, path="/")
        return response

    async def _me(self, request: web.Request) -> web.Response:
        session = self._session(request)
        return _json(
            {
                "role": session.role.word,
                "actor": session.actor,
                "csrf": session.csrf,
                "sla": SLA,
                "push_key": self._sources.push_key,
            }
        )

    def _session(self, request: web.Request) -> LoginSession:
        session = self._sessions.find(request.cookies.get(COOKIE))
        if session is None:  # it ended since the door let it in
            raise web.HTTPUnauthorized
        return session

    async def _settings(self, _request: web.Request) -> web.Response:
        return _json({"settings": self._sources.settings})

    # --- doing ----------------------------------------------------------------------------------

    async def _act(self, request: web.Request) -> web.Response:
        action = decode(await request.read())
        said = await self._actions.do(action, self._session(request), request.remote or "?")
        self.hub.look()
        self._answers.forget()
        return _json({"done": said})

    # --- telling --------------------------------------------------------------------------------

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        if len(self._sockets) >= SOCKETS:
            return refused(503, f"{SOCKETS} pages are open already")
        page = web.WebSocketResponse(heartbeat=20.0, max_msg_size=1024)
        if not page.can_prepare(request).ok:
            return refused(400, "this is a WebSocket")
        await page.prepare(request)
        self._sockets.add(page)
        telling = asyncio.create_task(self._tell(page, request))
        try:
            async for _ in page:
                pass  # a page has nothing to say; reading answers its pings and its goodbye
        finally:
            telling.cancel()
            await asyncio.wait({telling})
            self._sockets.discard(page)
        return page

    async def _tell(self, page: web.WebSocketResponse, request: web.Request) -> None:
        cookie = request.cookies.get(COOKIE)
        try:
            async with asyncio.timeout(SEND_S):
                await page.send_str(self.hub.history().decode())
            seen = -1
            while self._sessions.find(cookie) is not None:
                await self.hub.changed(seen)
                seen = self.hub.version
                async with asyncio.timeout(SEND_S):
                    await page.send_str(self.hub.text.decode())
            await page.close(code=4401, message=b"log in again")
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()

    async def close_sockets(self) -> None:
        for page in list(self._sockets):
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await page.close(code=WSCloseCode.GOING_AWAY)


@asynccontextmanager
async def serve(
    config: DashboardConfig, sources: DashboardSources, tokens: Tokens, listening: socket.socket
) -> AsyncIterator[Dashboard]:
    """Until left; the socket listens already."""
    dashboard = Dashboard(config, sources, tokens, SystemClock(), listening.getsockname()[1])
    runner = web.AppRunner(dashboard.app, access_log=None, handle_signals=False)
    await runner.setup()
    following = asyncio.create_task(dashboard.hub.run())
    try:
        await web.SockSite(runner, listening, ssl_context=_tls(config)).start()
        yield dashboard
    finally:
        following.cancel()
        await asyncio.wait({following})
        await dashboard.close_sockets()
        await runner.cleanup()


def bind_socket(config: DashboardConfig) -> socket.socket:
    """Bound and listening; any port serves while the usual one is taken."""
    ports = (USUAL_PORT, 0) if config.port == USUAL_PORT else (config.port,)
    for port in ports:
        try:
            return socket.create_server(
                (config.host, port),
                family=socket.AF_INET6 if ":" in config.host else socket.AF_INET,
                backlog=128,
            )
        except OSError as error:
            if port == ports[-1]:
                raise RefusedError(
                    f"dashboard: {config.host}:{port} cannot be listened on: {error.strerror}; "
                    "set dashboard.port, or dashboard.enabled = false"
                ) from None
    raise AssertionError("a port is returned or refused")


def address_of(config: DashboardConfig, listening: socket.socket) -> str:
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"{config.scheme}://{host}:{listening.getsockname()[1]}"


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
async def _told(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Our errors as answers a page can show."""
    try:
        return await handler(request)
    except ForbiddenError as error:
        return refused(403, str(error))
    except RefusedError as error:
        return refused(422, str(error))
    except OperationError as error:
        return refused(503, str(error))
    except web.HTTPException as error:
        return refused(error.status, error.reason)
    except Exception:
        log.error("a page could not be made", path=request.path, exc_info=True)
        return refused(500, "this page could not be made; the dashboard's log says why")


def _file(name: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    path = PAGE / name
    content = path.read_bytes()
    kind = _KINDS.get(path.suffix, "text/html")

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=content, content_type=kind, charset="utf-8")

    return answer


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
