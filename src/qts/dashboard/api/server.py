"""The API below /api/v1: a token in every request, JSON documents, idempotent actions."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web
from multidict import MultiDict

from qts.dashboard.action_service import ForbiddenError
from qts.dashboard.actions import Action
from qts.dashboard.api.access import ApiAccess, RequestQuota
from qts.dashboard.api.endpoints import (
    ACTIONS,
    QUERIES,
    ActionEndpoint,
    Query,
    query_types,
    request_digest,
    request_id_of,
)
from qts.dashboard.api.idempotency import IdempotentRequests, StoredAnswer
from qts.dashboard.api.openapi import openapi_document
from qts.dashboard.api.problem import PREFIX, ProblemError, is_api
from qts.dashboard.api.tokens import ApiToken, ApiTokens
from qts.dashboard.decoding import decode_params
from qts.dashboard.handlers import DashboardHandlers
from qts.dashboard.manual_orders import ManualOrderError
from qts.dashboard.session import Operator
from qts.database import Database
from qts.domain import Clock, RefusedError

IDEMPOTENCY_KEY = "Idempotency-Key"
REPEATED = "Idempotency-Replayed"
_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_TOKEN = web.RequestKey("token", ApiToken)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Api:
    """Endpoints of programs, over the handlers of the pages."""

    def __init__(
        self, database: Database, handlers: DashboardHandlers, per_minute: int, clock: Clock
    ) -> None:
        self._access = ApiAccess(ApiTokens(database), RequestQuota(per_minute, clock))
        self._requests = IdempotentRequests(database, clock)
        self._handlers = handlers
        self._document = msgspec.json.encode(openapi_document())

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_get(f"{PREFIX}/openapi.json", self._openapi)
        router.add_get(f"{PREFIX}/me", self._me)
        for path, query in QUERIES.items():
            router.add_get(PREFIX + path, self._reader(query))
        for name, endpoint in ACTIONS.items():
            router.add_post(f"{PREFIX}/actions/{name}", self._actor(name, endpoint))

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let only requests with a token reach a handler, or learn that there is none."""
        if is_api(request):
            request[_TOKEN] = await self._access.authorise(request)
        return await handler(request)

    async def _openapi(self, _request: web.Request) -> web.Response:
        return _json(self._document)

    async def _me(self, request: web.Request) -> web.Response:
        """Return the token of the request, without its secret."""
        return _json(msgspec.json.encode(request[_TOKEN]))

    def _reader(self, query: Query) -> Handler:
        params, _ = query_types(query)

        async def handle(request: web.Request) -> web.Response:
            given = MultiDict(request.query)
            given.extend(request.match_info)  # one that is a parameter, too, is refused
            decode_params(given, params)
            try:
                return _json(await self._handlers.read(query, params, given))
            except RefusedError as error:
                if request.match_info:  # the id is one, but of nothing
                    raise ProblemError(404, str(error)) from None
                raise

        return handle

    def _actor(self, name: str, endpoint: ActionEndpoint) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            token, key = request[_TOKEN], _idempotency_key(request)
            if request.query:
                raise ProblemError(400, "an action takes its fields in the body, not in the query")
            if request.content_type != "application/json":
                raise ProblemError(415, "the body must be application/json")
            action = endpoint.decode(await request.read(), request_id_of(token.id, key))
            operator = Operator(f"api {token.name}", token.rank, request.remote or "?")
            if operator.role < action.role:
                await self._handlers.act(action, operator)  # refused, and logged
            answer = await self._requests.run(
                token.id,
                key,
                request_digest(name, action),
                lambda: self._perform(action, operator),
            )
            return _answer(answer)

        return handle

    async def _perform(self, action: Action, operator: Operator) -> StoredAnswer:
        """Perform an action; return what it ended with, also if it was refused."""
        try:
            result = await self._handlers.act(action, operator)
        except ForbiddenError:
            raise
        except (RefusedError, ManualOrderError) as error:
            return StoredAnswer(422 if isinstance(error, RefusedError) else 409, str(error))
        return StoredAnswer(200, msgspec.to_builtins(result))


def _answer(answer: StoredAnswer) -> web.Response:
    headers = {REPEATED: "true"} if answer.is_repeated else {}
    if answer.status != 200:
        raise ProblemError(answer.status, answer.body, headers)
    response = _json(msgspec.json.encode(answer.body))
    response.headers.update(headers)
    return response


def _idempotency_key(request: web.Request) -> str:
    given = request.headers.getall(IDEMPOTENCY_KEY, [])
    if len(given) != 1 or not _KEY.fullmatch(given[0]):
        raise ProblemError(
            400,
            f"the header {IDEMPOTENCY_KEY} is missing or invalid; expected 1 to 200 characters"
            " without spaces, new for each action",
        )
    return given[0]


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
