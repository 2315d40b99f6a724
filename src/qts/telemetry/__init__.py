"""Logs, context ids, metrics and traces: how QTS tells what it does."""

from __future__ import annotations

from qts.telemetry.config import TelemetryConfig
from qts.telemetry.context import (
    Ids,
    bind,
    carry,
    context,
    context_of,
    current_context,
    new_trace_id,
)
from qts.telemetry.exposition import exposed
from qts.telemetry.host import watch_host
from qts.telemetry.latency import LatencyHistogram, latency
from qts.telemetry.logs import lines_dropped, logger
from qts.telemetry.metrics import CONTENT_TYPE, counter, gauge, histogram, render, samples
from qts.telemetry.redact import redact_text
from qts.telemetry.setup import configure, shutdown
from qts.telemetry.throttle import Throttle, every
from qts.telemetry.traces import Span, span, tracing

__all__ = [
    "CONTENT_TYPE",
    "Ids",
    "LatencyHistogram",
    "Span",
    "TelemetryConfig",
    "Throttle",
    "bind",
    "carry",
    "configure",
    "context",
    "context_of",
    "counter",
    "current_context",
    "every",
    "exposed",
    "gauge",
    "histogram",
    "latency",
    "lines_dropped",
    "logger",
    "new_trace_id",
    "redact_text",
    "render",
    "samples",
    "shutdown",
    "span",
    "tracing",
    "watch_host",
]
