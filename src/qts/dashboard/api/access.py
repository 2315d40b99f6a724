"""Who may use the API: a bearer token in every request, and a number of requests per token."""

from __future__ import annotations

import math

from aiohttp import web

from qts import telemetry
from qts.dashboard.api.problem import ProblemError
from qts.dashboard.api.tokens import ApiToken, ApiTokens, InvalidTokenError
from qts.domain import Clock

log = telemetry.logger("dashboard")

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
    """Check of the token of every request."""

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
