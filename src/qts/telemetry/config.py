"""What the settings say about logs and traces."""

from __future__ import annotations

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
    otlp_endpoint: Annotated[
        str | None,
        msgspec.Meta(description="URL of an OTLP/HTTP collector; without it no traces are sent."),
    ] = None
