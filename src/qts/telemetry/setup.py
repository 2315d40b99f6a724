"""Start and stop of logging and tracing."""

from __future__ import annotations

from typing import TextIO

from qts.telemetry import logs, traces
from qts.telemetry.config import TelemetryConfig
from qts.telemetry.log_throttle import take_suppressed
from qts.telemetry.logs import logger


def configure(config: TelemetryConfig, stream: TextIO | None = None) -> None:
    """Set up logs (to `stream`, else standard error) and traces; may be called repeatedly."""
    logs.configure(config, stream)
    traces.configure(config)


def shutdown() -> None:
    """Log how many lines were suppressed, flush pending spans, restore the logging hooks."""
    for key, suppressed in take_suppressed().items():
        logger("telemetry").warning("log lines suppressed", key=key, suppressed=suppressed)
    traces.shutdown()
    logs.restore()
