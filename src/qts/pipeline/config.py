"""Settings of the room."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from qts.domain import RefusedError


class PipelineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cycle: how often, and how long it waits."""

    interval_ms: Annotated[
        int, Meta(ge=500, le=3000, description="between the starts of two cycles")
    ] = 1000
    fill_timeout_s: Annotated[
        float, Meta(gt=0, le=60, description="how long a cycle waits for its fills")
    ] = 5.0
    signal_ttl_s: Annotated[
        float, Meta(gt=0, le=300, description="a signal older than this is not sent any more")
    ] = 5.0
    strategies: Annotated[
        tuple[str, ...],
        Meta(description="module:Class of each strategy, in the order of their right of way"),
    ] = ()
    isolated_strategies: Annotated[
        tuple[str, ...],
        Meta(description='keys of strategies that run in a process of their own; "*": all'),
    ] = ()
    journal: Annotated[
        Path | None,
        Meta(description="folder for what decisions hung on, see qts retrace; unset: none is kept"),
    ] = None
    params: Annotated[
        tuple[str, ...],
        Meta(description="parameters of strategies, each as rsi_scalper.length=20"),
    ] = ()

    def params_of(self, key: str) -> dict[str, str]:
        """The parameters of one strategy, as they were written."""
        found = {}
        for line in self.params:
            name, is_set, value = line.partition("=")
            strategy, _, parameter = name.strip().partition(".")
            if not (is_set and strategy and parameter):
                raise RefusedError(
                    f"pipeline.params: {line!r} is no parameter; write rsi_scalper.length=20"
                )
            if strategy == key:
                found[parameter] = value.strip()
        return found
