"""What the settings say about logs, metrics and traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec


class TelemetryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        msgspec.Meta(description="The quietest level that is still written."),
    ] = "info"
    log_format: Annotated[
        Literal["auto", "console", "json"],
        msgspec.Meta(description="How a log line looks; auto is console on a terminal, else JSON."),
    ] = "auto"
    log_file: Annotated[
        Path | None,
        msgspec.Meta(description="Write logs to this file instead of standard error."),
    ] = None
    log_file_mb: Annotated[
        int, msgspec.Meta(ge=1, le=10_000, description="A log file of this size is put aside.")
    ] = 50
    log_files: Annotated[
        int, msgspec.Meta(ge=0, le=1000, description="Log files put aside that are kept.")
    ] = 5
    metrics_port: Annotated[
        int,
        msgspec.Meta(
            ge=0, le=65535, description="Serve /metrics on 127.0.0.1 at this port; 0: do not."
        ),
    ] = 0
    otlp_endpoint: Annotated[
        str | None,
        msgspec.Meta(description="URL of an OTLP/HTTP collector; without it no traces are sent."),
    ] = None
