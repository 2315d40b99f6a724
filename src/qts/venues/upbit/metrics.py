"""Prometheus metrics of Upbit requests; the label values are a fixed set.

Every error class starts at zero: an alert on its increase would miss the first error otherwise.
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
    "Requests to Upbit by HTTP status; none: no reply.",
    ("endpoint", "method", "status"),
)
_errors = telemetry.counter(
    "everbit_upbit_http_errors_total",
    "Failed requests to Upbit by error class: 429 is throttled, 418 is blocked.",
    ("endpoint", "class"),
)
_remaining = telemetry.gauge(
    "everbit_upbit_rate_limit_remaining",
    "Requests left in the second, as Upbit last reported.",
    ("group",),
)
_duration = telemetry.histogram(
    "everbit_upbit_http_duration_seconds",
    "Time from a request to the end of its reply, or to its timeout.",
    ("endpoint",),
    (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
for _endpoint in ENDPOINTS:
    for _kind in KINDS:
        _errors.labels(_endpoint, _kind)

E = TypeVar("E", bound=QtsError)


class RequestTimer:
    """Measures one request."""

    __slots__ = ("_clock", "_endpoint", "_method", "_started_ns")

    def __init__(self, method: str, path: str, clock: Clock) -> None:
        name = path.removeprefix("/v1/")
        self._endpoint = name if name in ENDPOINTS else "other"
        self._method = method
        self._clock = clock
        self._started_ns = clock.monotonic_ns()

    def finished(self, status: int) -> None:
        """Count the request with its HTTP status; 0: without a reply."""
        _requests.labels(self._endpoint, self._method, _status_label(status)).inc()
        seconds = (self._clock.monotonic_ns() - self._started_ns) / 1e9
        _duration.labels(self._endpoint).observe(seconds)

    def failed(self, error: E) -> E:
        """Count an error and return it."""
        _errors.labels(self._endpoint, _error_class(error)).inc()
        return error


def set_remaining(group: str, requests: int) -> None:
    _remaining.labels(group if group in GROUPS else "other").set(requests)


def _status_label(status: int) -> str:
    if status in STATUSES:
        return str(status)
    return f"{status // 100}xx" if 100 <= status < 600 else "none"


def _error_class(error: QtsError) -> str:
    if isinstance(error, RateLimitedError):
        return "blocked" if error.blocked else "throttled"
    if isinstance(error, UnreachableError):
        return "unknown" if isinstance(error, OutcomeUnknownError) else "unreachable"
    return "rejected" if isinstance(error, VenueRejectedError) else "refused"
