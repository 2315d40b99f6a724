"""What Upbit answered, counted for Prometheus; no label grows with what a venue or a caller sends.

Every kind of error counts from zero: an alert on its growth would not see the first one otherwise.
"""

from __future__ import annotations

from typing import TypeVar

from qts import telemetry
from qts.domain import Clock, OutcomeUnknownError, QtsError, UnreachableError
from qts.venues.errors import RateLimitedError, VenueRejectedError

ENDPOINTS = (
    "accounts",
    "market/all",
    "order",
    "orderbook",
    "orders",
    "orders/chance",
    "orders/closed",
    "orders/open",
    "orders/test",
    "ticker",
    "ticker/all",
    "other",
)
STATUSES = frozenset({200, 201, 400, 401, 403, 404, 418, 422, 429, 500, 502, 503, 504})
GROUPS = frozenset(
    {
        "candle",
        "default",
        "market",
        "order",
        "order-cancel-all",
        "order-test",
        "orderbook",
        "ticker",
        "trade",
    }
)
KINDS = ("blocked", "refused", "rejected", "throttled", "unknown", "unreachable")

_requests = telemetry.counter(
    "everbit_upbit_http_requests_total",
    "Requests to Upbit by the status of the reply; none: it never came.",
    ("endpoint", "method", "status"),
)
_errors = telemetry.counter(
    "everbit_upbit_http_errors_total",
    "Requests to Upbit that failed, by what that means: 429 is throttled, 418 is blocked.",
    ("endpoint", "class"),
)
_remaining = telemetry.gauge(
    "everbit_upbit_rate_limit_remaining",
    "Requests that Upbit last said are left in the second.",
    ("group",),
)
_duration = telemetry.histogram(
    "everbit_upbit_http_duration_seconds",
    "From a request to the end of its reply, or to giving up.",
    ("endpoint",),
    (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
for _endpoint in ENDPOINTS:
    for _kind in KINDS:
        _errors.labels(_endpoint, _kind)

E = TypeVar("E", bound=QtsError)


class RequestTimer:
    """One request on its way."""

    __slots__ = ("_began", "_clock", "_endpoint", "_method")

    def __init__(self, method: str, path: str, clock: Clock) -> None:
        name = path.removeprefix("/v1/")
        self._endpoint = name if name in ENDPOINTS else "other"
        self._method = method
        self._clock = clock
        self._began = clock.monotonic_ns()

    def ended(self, status: int) -> None:
        """With this status; 0: without a reply."""
        _requests.labels(self._endpoint, self._method, status_label(status)).inc()
        seconds = (self._clock.monotonic_ns() - self._began) / 1e9
        _duration.labels(self._endpoint).observe(seconds)

    def failed(self, error: E) -> E:
        """The same error, counted."""
        _errors.labels(self._endpoint, _kind_of(error)).inc()
        return error


def left(group: str, requests: int) -> None:
    _remaining.labels(group if group in GROUPS else "other").set(requests)


def status_label(status: int) -> str:
    if status in STATUSES:
        return str(status)
    return f"{status // 100}xx" if 100 <= status < 600 else "none"


def _kind_of(error: QtsError) -> str:
    if isinstance(error, RateLimitedError):
        return "blocked" if error.blocked else "throttled"
    if isinstance(error, UnreachableError):
        return "unknown" if isinstance(error, OutcomeUnknownError) else "unreachable"
    return "rejected" if isinstance(error, VenueRejectedError) else "refused"
