"""Prometheus metrics of venue requests, rate limits and streams; label values are a fixed set.

Every outcome of an endpoint starts at zero with its first request: an alert on its increase would
miss the first failure otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from qts import telemetry
from qts.domain import Clock, OutcomeUnknownError, QtsError, UnreachableError
from qts.venues.errors import RateLimitedError, VenueRejectedError
from qts.venues.rate_limiter import RateLimiter

FAILURES = ("blocked", "refused", "rejected", "throttled", "unknown", "unreachable")
OUTCOMES = ("ok", "cancelled", *FAILURES)
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

_requests = telemetry.counter(
    "qts_venue_requests_total",
    "Requests to a venue by outcome: 429 is throttled, 418 blocked, unknown: it may have acted.",
    ("venue", "endpoint", "outcome"),
)
_duration = telemetry.histogram(
    "qts_venue_request_seconds",
    "Time from a request to the end of its reply, or to its failure.",
    ("venue", "endpoint"),
    BUCKETS_S,
)
_budget = telemetry.gauge(
    "qts_venue_budget_remaining",
    "Requests that the rate limits allow now, by window.",
    ("venue", "window"),
)
_reconnects = telemetry.counter(
    "qts_venue_stream_reconnects_total", "Lost connections of a venue's stream.", ("venue",)
)

E = TypeVar("E", bound=QtsError)


class RequestMeter:
    """Measures one request: entered when it is sent, left when its reply is decoded."""

    __slots__ = ("_clock", "_endpoint", "_outcome", "_started_ns", "_venue")

    def __init__(self, venue: str, endpoint: str, clock: Clock) -> None:
        self._venue = venue
        self._endpoint = endpoint
        self._clock = clock
        self._outcome = ""

    def __enter__(self) -> Self:
        self._started_ns = self._clock.monotonic_ns()
        return self

    def failed(self, error: E) -> E:
        """Note the error that the reply means, or the lack of one, and return it."""
        self._outcome = error_class(error)
        return error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        outcome = self._outcome or ("ok" if kind is None else "cancelled")
        if not self._outcome and isinstance(error, QtsError):
            outcome = error_class(error)
        counters, timer = _series(self._venue, self._endpoint)
        counters[outcome].inc()
        timer.observe(self.took_s)

    @property
    def took_s(self) -> float:
        return (self._clock.monotonic_ns() - self._started_ns) / 1e9


@functools.cache
def _series(venue: str, endpoint: str) -> tuple[Mapping[str, Any], Any]:
    """Return the counters by outcome and the histogram of an endpoint."""
    counters = {outcome: _requests.labels(venue, endpoint, outcome) for outcome in OUTCOMES}
    return counters, _duration.labels(venue, endpoint)


def error_class(error: QtsError) -> str:
    if isinstance(error, RateLimitedError):
        return "blocked" if error.blocked else "throttled"
    if isinstance(error, UnreachableError):
        return "unknown" if isinstance(error, OutcomeUnknownError) else "unreachable"
    return "rejected" if isinstance(error, VenueRejectedError) else "refused"


@contextmanager
def exported_budget(venue: str, limiters: Mapping[str, RateLimiter]) -> Iterator[None]:
    """Export what the limiters have left, read at each scrape; their names prefix the window.

    A limiter named "" is the only one of its key, and its windows have no prefix.
    """
    windows = {
        f"{name} {window}".strip(): functools.partial(_remaining, limiter, window)
        for name, limiter in limiters.items()
        for window in limiter.remaining()
        if window == "second" or not name
    }
    for window, read in windows.items():
        _budget.labels(venue, window).set_function(read)
    try:
        yield
    finally:
        for window in windows:
            _budget.remove(venue, window)


def _remaining(limiter: RateLimiter, window: str) -> float:
    return limiter.remaining()[window]


def stream_reconnects(venue: str) -> Any:
    """Return the counter of lost connections, from zero."""
    return _reconnects.labels(venue)


# --- Upbit's series, named as the trading rules name them -----------------------------------------

UPBIT_ENDPOINTS = (
    "accounts",
    "candles",
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
UPBIT_STATUSES = frozenset({200, 201, 400, 401, 403, 404, 418, 422, 429, 500, 502, 503, 504})
UPBIT_GROUPS = frozenset(
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

_upbit_requests = telemetry.counter(
    "everbit_upbit_http_requests_total",
    "Requests to Upbit by HTTP status; none: no reply.",
    ("endpoint", "method", "status"),
)
_upbit_errors = telemetry.counter(
    "everbit_upbit_http_errors_total",
    "Failed requests to Upbit by error class: 429 is throttled, 418 is blocked.",
    ("endpoint", "class"),
)
_upbit_remaining = telemetry.gauge(
    "everbit_upbit_rate_limit_remaining",
    "Requests left in the second, as Upbit last reported.",
    ("group",),
)
_upbit_duration = telemetry.histogram(
    "everbit_upbit_http_duration_seconds",
    "Time from a request to the end of its reply, or to its timeout.",
    ("endpoint",),
    BUCKETS_S,
)
for _endpoint in UPBIT_ENDPOINTS:
    for _kind in FAILURES:
        _upbit_errors.labels(_endpoint, _kind)


class UpbitRequestMeter(RequestMeter):
    """Measures one request to Upbit; `status` is that of its reply, 0 without one."""

    __slots__ = ("_method", "status")

    def __init__(self, method: str, path: str, clock: Clock) -> None:
        name = path.removeprefix("/v1/")
        if name.startswith("candles/"):
            name = "candles"
        super().__init__("upbit", name if name in UPBIT_ENDPOINTS else "other", clock)
        self._method = method
        self.status = 0

    def failed(self, error: E) -> E:
        _upbit_errors.labels(self._endpoint, error_class(error)).inc()
        return super().failed(error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, _)
        _upbit_requests.labels(self._endpoint, self._method, _status_label(self.status)).inc()
        _upbit_duration.labels(self._endpoint).observe(self.took_s)


def set_upbit_remaining(group: str, requests: int) -> None:
    _upbit_remaining.labels(group if group in UPBIT_GROUPS else "other").set(requests)


def _status_label(status: int) -> str:
    if status in UPBIT_STATUSES:
        return str(status)
    return f"{status // 100}xx" if 100 <= status < 600 else "none"
