"""Spans as they are recorded in this process, and as an OTLP/HTTP collector receives them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from qts.telemetry import traces


class Spans(InMemorySpanExporter):
    def by_name(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.get_finished_spans()}

    def chain(self, last: ReadableSpan) -> list[str]:
        """Return the names from the root to this span."""
        spans = {s.context.span_id: s for s in self.get_finished_spans() if s.context is not None}
        names, above = [last.name], last.parent
        while above is not None:
            names.insert(0, spans[above.span_id].name)
            above = spans[above.span_id].parent
        return names


@contextmanager
def recording() -> Iterator[Spans]:
    """Record spans for the length of a `with` block."""
    exporter = Spans()
    traces.start(SimpleSpanProcessor(exporter))
    try:
        yield exporter
    finally:
        traces.stop()


class Collector:
    """Server on 127.0.0.1; `requests` are those for traces, decoded."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"
        self.requests: list[ExportTraceServiceRequest] = []

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in list(self.requests)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector for the length of a `with` block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/v1/traces":
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(server.server_port)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join(10)
