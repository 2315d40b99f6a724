"""Settings of the pipeline and its strategies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta


class PipelineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cycles and strategies."""

    interval_ms: Annotated[
        int, Meta(ge=500, le=3000, description="between the starts of two cycles")
    ] = 1000
    fill_timeout_s: Annotated[
        float, Meta(gt=0, le=60, description="how long a cycle waits for its fills")
    ] = 5.0
    signal_ttl_s: Annotated[
        float, Meta(gt=0, le=300, description="a signal older than this is not sent")
    ] = 5.0
    strategies: Annotated[
        tuple[str, ...],
        Meta(description="class of each strategy: the short form of [[strategy]] tables"),
    ] = ()
    isolated_strategies: Annotated[
        tuple[str, ...],
        Meta(description='names of strategies that run in separate processes; "*": all'),
    ] = ()
    journal: Annotated[
        Path | None,
        Meta(description="folder of decision journals, for qts explain; unset: none"),
    ] = None
    params: Annotated[
        tuple[str, ...],
        Meta(description="parameters of strategies, each as rsi_scalper.length=20"),
    ] = ()
