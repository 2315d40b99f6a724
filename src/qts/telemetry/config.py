"""Settings of logs, metrics and traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec


class TelemetryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        msgspec.Meta(description="Lowest level that is logged."),
    ] = "info"
    log_format: Annotated[
        Literal["auto", "console", "json"],
        msgspec.Meta(description="Format of a log line; auto is console on a terminal, else JSON."),
    ] = "auto"
    log_file: Annotated[
        Path | None,
        msgspec.Meta(description="Write logs to this file instead of standard error."),
    ] = None
    log_file_mb: Annotated[
        int, msgspec.Meta(ge=1, le=10_000, description="Size at which the log file is rotated.")
    ] = 50
    log_files: Annotated[
        int, msgspec.Meta(ge=0, le=1000, description="Rotated log files to keep.")
    ] = 5
    metrics_port: Annotated[
        int,
        msgspec.Meta(
            ge=0, le=65535, description="Serve /metrics on 127.0.0.1 at this port; 0: off."
        ),
    ] = 0
    otlp_endpoint: Annotated[
        str | None,
        msgspec.Meta(description="URL of an OTLP/HTTP collector; unset: no traces."),
    ] = None
