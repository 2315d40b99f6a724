"""Spans for OpenTelemetry, and the start and stop of logs and traces.

Spans are recorded when the extra `otel` is installed and an endpoint is set. Otherwise `span`
returns a shared object that does nothing. The trace id of a span is the `traceId` of the context it
starts in; a span outside any trace starts one and adds its id to the context.

Work that passes through a queue or another thread leaves its context behind. There the earlier
span is remembered under the id of what is passed on (a tick, a signal, an order), and the later one
follows that id:

    with span("commit") as commit:       with span("request", follows=intent_id):
        commit.remember(intent_id)           ...
"""

from __future__ import annotations

import hashlib
import re
import threading
import traceback
from collections import OrderedDict
from collections.abc import Hashable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TextIO

from qts.telemetry import logs
from qts.telemetry.config import TelemetryConfig
from qts.telemetry.context import context, current_context, new_trace_id, redact_pair, redact_text
from qts.telemetry.logs import logger, take_suppressed

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.trace import SpanContext, Tracer


EXPORT_TIMEOUT_S = 3.0  # longest delay of a shutdown by an unreachable collector
MAX_REMEMBERED = 10_000  # spans that later ones may follow; the oldest are dropped

_HEX_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")

log = logger("telemetry")


class Span(Protocol):
    def set(self, **attributes: object) -> None:
        """Add attributes to the span."""
        ...

    def remember(self, key: Hashable) -> None:
        """Make this span the parent of those that follow `key`."""
        ...

    def __enter__(self) -> Span: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class _NoSpan:
    __slots__ = ()

    def set(self, **attributes: object) -> None:
        pass

    def remember(self, key: Hashable) -> None:
        pass

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Remembered(NamedTuple):
    trace_id: str
    span: SpanContext


class _Links:
    """The latest remembered spans, by key; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: OrderedDict[Hashable, _Remembered] = OrderedDict()

    def add(self, key: Hashable, remembered: _Remembered) -> None:
        with self._lock:
            self._spans[key] = remembered
            self._spans.move_to_end(key)
            if len(self._spans) > MAX_REMEMBERED:
                self._spans.popitem(last=False)

    def get(self, key: Hashable) -> _Remembered | None:
        with self._lock:
            return self._spans.get(key)

    def clear(self) -> None:
        with self._lock:
            self._spans.clear()


_NO_SPAN = _NoSpan()
_links = _Links()
_tracer: Tracer | None = None
_provider: TracerProvider | None = None


def tracing() -> bool:
    """Return whether spans are recorded; lets hot paths skip even a no-op span."""
    return _tracer is not None


def span(
    name: str, *, follows: Hashable = None, began_ns: int | None = None, **attributes: object
) -> Span:
    """Time a `with` block as one span of the current trace; free when traces are off.

    It is a child of the span remembered under `follows`, if there is one, else of the current one.
    `began_ns` (nanoseconds since 1970) is the start of what was found worth a span at its end.
    """
    if _tracer is None:
        return _NO_SPAN
    return _LiveSpan(_tracer, name, _links.get(follows), began_ns, attributes)


def trace_id_of(key: Hashable) -> str:
    """Return the trace id of the span remembered under the key; "" where there is none."""
    remembered = _links.get(key) if _tracer is not None else None
    return remembered.trace_id if remembered is not None else ""


class _LiveSpan:
    def __init__(
        self,
        tracer: Tracer,
        name: str,
        follows: _Remembered | None,
        began_ns: int | None,
        attributes: dict[str, object],
    ) -> None:
        self._tracer = tracer
        self._name = name
        self._follows = follows
        self._began_ns = began_ns
        self._attributes = attributes

    def __enter__(self) -> Span:
        from opentelemetry import context as otel
        from opentelemetry import trace

        follows = self._follows
        trace_id = follows.trace_id if follows else current_context().get("traceId")
        self._ids = context(traceId=trace_id or new_trace_id())
        self._ids.__enter__()
        ids = current_context()
        within = otel.Context()
        if follows is not None:
            within = trace.set_span_in_context(trace.NonRecordingSpan(follows.span), within)
        elif trace.get_current_span().get_span_context().trace_id == _otel_id(ids["traceId"]):
            within = otel.get_current()
        self._span = self._tracer.start_span(
            self._name, within, attributes=_plain(ids), start_time=self._began_ns
        )
        self._token = otel.attach(trace.set_span_in_context(self._span, within))
        self.set(**self._attributes)
        return self

    def set(self, **attributes: object) -> None:
        self._span.set_attributes(_plain(attributes))

    def remember(self, key: Hashable) -> None:
        trace_id = current_context()["traceId"]
        _links.add(key, _Remembered(trace_id, self._span.get_span_context()))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        from opentelemetry import context as otel

        if kind is not None and not issubclass(kind, GeneratorExit):
            self._fail(kind, error, trace)
        self._span.end()
        otel.detach(self._token)
        self._ids.__exit__()

    def _fail(
        self,
        kind: type[BaseException],
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        from opentelemetry.trace import Status, StatusCode

        message = redact_text(str(error))
        lines = "".join(traceback.format_exception(kind, error, trace))
        attributes = {
            "exception.type": kind.__qualname__,
            "exception.message": message,
            "exception.stacktrace": redact_text(lines),
        }
        self._span.add_event("exception", attributes)
        self._span.set_status(Status(StatusCode.ERROR, f"{kind.__qualname__}: {message}"))


def configure(config: TelemetryConfig, stream: TextIO | None = None) -> None:
    """Set up logs (to `stream`, else standard error) and traces; may be called repeatedly."""
    logs.configure(config, stream)
    _start_export(config)


def shutdown() -> None:
    """Log how many lines were suppressed, flush pending spans, restore the logging hooks."""
    for key, suppressed in take_suppressed().items():
        logger("telemetry").warning("log lines suppressed", key=key, suppressed=suppressed)
    stop()
    logs.restore()


def _start_export(config: TelemetryConfig) -> None:
    """Send spans to the collector in the settings; without one, record none."""
    stop()
    if config.otlp_endpoint is None:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        log.warning('traces disabled; install "qts[otel]"', missing=error.name)
        return
    exporter = OTLPSpanExporter(
        endpoint=_traces_url(config.otlp_endpoint), timeout=EXPORT_TIMEOUT_S
    )
    start(BatchSpanProcessor(exporter))


def start(processor: SpanProcessor) -> None:
    """Record spans and pass them to this processor."""
    global _provider, _tracer
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class ContextIds(RandomIdGenerator):
        def generate_trace_id(self) -> int:
            return _otel_id(current_context()["traceId"])

    _provider = TracerProvider(
        resource=Resource({"service.name": "qts"}),
        id_generator=ContextIds(),
        shutdown_on_exit=False,
    )
    _provider.add_span_processor(processor)
    _tracer = _provider.get_tracer("qts")


def stop() -> None:
    """Flush pending spans and stop recording."""
    global _provider, _tracer
    provider, _provider, _tracer = _provider, None, None
    _links.clear()
    if provider is not None:
        provider.shutdown()


def _otel_id(trace_id: str) -> int:
    """Return the trace id as a number; an id of another format is hashed."""
    if _HEX_ID.fullmatch(trace_id):
        return int(trace_id, 16)
    return int.from_bytes(hashlib.blake2b(trace_id.encode(), digest_size=16).digest()) or 1


def _plain(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return attributes as texts, numbers and booleans, with secrets masked."""
    plain = {}
    for key, value in attributes.items():
        safe = redact_pair(key, value)
        plain[key] = safe if isinstance(safe, str | bool | int | float) else str(safe)
    return plain


def _traces_url(endpoint: str) -> str:
    return (
        endpoint
        if endpoint.rstrip("/").endswith("/v1/traces")
        else endpoint.rstrip("/") + "/v1/traces"
    )
