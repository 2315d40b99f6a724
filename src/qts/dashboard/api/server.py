"""The API below /api/v1: a token in every request, JSON documents, idempotent actions."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import msgspec
from aiohttp import web
from multidict import MultiDict

from qts import telemetry
from qts.dashboard.action_service import ForbiddenError
from qts.dashboard.actions import Action
from qts.dashboard.api.openapi import (
    ACTIONS,
    PREFIX,
    QUERIES,
    ActionEndpoint,
    ProblemError,
    Query,
    is_api,
    openapi_document,
    query_types,
    request_digest,
    request_id_of,
)
from qts.dashboard.api.tokens import ApiToken, ApiTokens, InvalidTokenError
from qts.dashboard.handlers import DashboardHandlers, decode_params
from qts.dashboard.manual_orders import ManualOrderError
from qts.dashboard.session import Operator
from qts.database import Database
from qts.domain import Clock, RefusedError

log = telemetry.logger("dashboard")

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


BURST_S = 6.0  # requests of this time may come at once
MAX_TOKENS = 10_000


class RequestQuota:
    """Token bucket of each bearer token."""

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self._per_s = per_minute / 60
        self._size = max(1.0, self._per_s * BURST_S)
        self._clock = clock
        self._left: dict[str, tuple[float, int]] = {}  # by token: requests, and when

    def take(self, token_id: str) -> float:
        """Take one request; return the seconds to wait if there is none."""
        now = self._clock.monotonic_ns()
        left, at = self._left.pop(token_id, (self._size, now))
        left = min(self._size, left + (now - at) / 1e9 * self._per_s)
        wait_s = 0.0 if left >= 1 else (1 - left) / self._per_s
        while len(self._left) >= MAX_TOKENS:
            del self._left[next(iter(self._left))]
        self._left[token_id] = (left if wait_s else left - 1, now)
        return wait_s


class ApiAccess:
    """Check of every request: a bearer token, and a number of requests per token."""

    def __init__(self, tokens: ApiTokens, quota: RequestQuota) -> None:
        self._tokens = tokens
        self._quota = quota

    async def authorise(self, request: web.Request) -> ApiToken:
        """Return the token of a request; raise ProblemError for one that may not in."""
        scheme, _, text = request.headers.get("Authorization", "").partition(" ")
        try:
            if scheme.lower() != "bearer" or len(request.headers.getall("Authorization")) != 1:
                raise InvalidTokenError("expected the header Authorization: Bearer TOKEN")
            token = await self._tokens.find(text.strip())
        except InvalidTokenError as error:
            if due := telemetry.log_every(10.0, "api token refused"):
                log.warning("API token refused", peer=request.remote, reason=str(error), **due)
            raise ProblemError(
                401,
                f"{error}; create one with qts dashboard token create",
                {"WWW-Authenticate": 'Bearer realm="qts"'},
            ) from None
        if wait_s := self._quota.take(token.id):
            raise ProblemError(
                429,
                f"token {token.name} has used its requests; see dashboard.api_requests_per_minute",
                {"Retry-After": str(math.ceil(wait_s))},
            )
        return token


CLAIM_TTL = timedelta(seconds=120)  # longer than any action
WAIT_S = 60.0
POLL_S = 0.05
_CLAIM = (
    "INSERT INTO api_request AS r (token_id, key, request_digest) VALUES ($1, $2, $3)"
    " ON CONFLICT (token_id, key) DO UPDATE SET started_at = clock_timestamp()"
    " WHERE r.status IS NULL AND r.request_digest = $3"
    " AND r.started_at < clock_timestamp() - $4::interval"
    " RETURNING id"
)
_READ = "SELECT request_digest, status, answer FROM api_request WHERE token_id = $1 AND key = $2"
_FINISH = "UPDATE api_request SET status = $2, answer = $3 WHERE id = $1"
_ABANDON = "DELETE FROM api_request WHERE id = $1 AND status IS NULL"


class StoredAnswer(msgspec.Struct, frozen=True):
    status: int
    body: Any
    is_repeated: bool = False


class IdempotentRequests:
    """Idempotent requests: the same key performs an action once and returns its first outcome.

    A request claims its key, performs the action and stores the answer. Another with the same key
    waits for that answer, in whichever process it arrives. The claim of a process that died is
    taken over: every action may be performed again, and orders carry an id that is derived from the
    key.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def run(
        self,
        token_id: str,
        key: str,
        digest: bytes,
        perform: Callable[[], Awaitable[StoredAnswer]],
    ) -> StoredAnswer:
        """Perform once; `perform` raises where the outcome is not known, and may run again then."""
        end_ns = self._clock.monotonic_ns() + round(WAIT_S * 1e9)
        while True:
            claim = await self._database.fetchval(_CLAIM, token_id, key, digest, CLAIM_TTL)
            if claim is not None:
                return await self._perform(claim, perform)
            found = await self._stored(token_id, key, digest)
            if found is not None:
                return found
            if self._clock.monotonic_ns() >= end_ns:
                raise ProblemError(
                    409,
                    "the first request with this Idempotency-Key has not ended; repeat it later",
                    {"Retry-After": "5"},
                )
            await self._clock.sleep(POLL_S)

    async def _perform(
        self, claim: int, perform: Callable[[], Awaitable[StoredAnswer]]
    ) -> StoredAnswer:
        try:
            answer = await perform()
        except Exception:
            await self._database.execute(_ABANDON, claim)
            raise
        await self._database.execute(_FINISH, claim, answer.status, answer.body)
        return answer

    async def _stored(self, token_id: str, key: str, digest: bytes) -> StoredAnswer | None:
        row = await self._database.fetchrow(_READ, token_id, key)
        if row is None:
            return None
        if row["request_digest"] != digest:
            raise ProblemError(
                409, "this Idempotency-Key belongs to another request; use a new one for each"
            )
        if row["status"] is None:
            return None
        return StoredAnswer(row["status"], row["answer"], is_repeated=True)
