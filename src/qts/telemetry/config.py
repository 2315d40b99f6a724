"""Settings of logs, metrics and traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec


class TelemetryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        msgspec.Meta(description="lowest level that is logged."),
    ] = "info"
    log_format: Annotated[
        Literal["auto", "console", "json"],
        msgspec.Meta(description="format of a log line; auto is console on a terminal, else JSON."),
    ] = "auto"
    log_file: Annotated[
        Path | None,
        msgspec.Meta(description="log file; unset: standard error"),
    ] = None
    log_file_mb: Annotated[
        int, msgspec.Meta(ge=1, le=10_000, description="size at which the log file is rotated.")
    ] = 50
    log_files: Annotated[
        int, msgspec.Meta(ge=0, le=1000, description="rotated log files to keep.")
    ] = 5
    metrics_port: Annotated[
        int,
        msgspec.Meta(ge=0, le=65535, description="port of /metrics on 127.0.0.1; 0: off"),
    ] = 0
    otlp_endpoint: Annotated[
        str | None,
        msgspec.Meta(description="URL of an OTLP/HTTP collector; unset: no traces."),
    ] = None
    trace_every: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=1_000_000_000,
            description="every so many ticks one is traced; 0: none. Orders are always traced.",
        ),
    ] = 1000
