"""Settings of the room.

Settings of the stops and of the loop around them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from qts.risk.limits import RiskLimitsConfig


class HoldTimeLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a position may be held, by the kind of its strategy; 0: for ever."""

    scalp_s: Annotated[float, Meta(ge=0, le=1e9, description="a scalp")] = 3600.0
    swing_s: Annotated[float, Meta(ge=0, le=1e9, description="a swing trade")] = 604_800.0
    portfolio_s: Annotated[float, Meta(ge=0, le=1e9, description="a holding of the portfolio")] = (
        0.0
    )


class StopsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a position leaves by itself. Parts are of the average price."""

    trail_arm: Annotated[
        float, Meta(gt=0, le=0.99, description="gain that arms the trailing stop")
    ] = 0.01
    trail: Annotated[
        float, Meta(gt=0, le=0.99, description="distance of the trailing stop from the best price")
    ] = 0.005
    trail_min_distance: Annotated[
        float, Meta(ge=0, le=1e9, description="and its least distance, in won; 0: none")
    ] = 0.0
    mae_half: Annotated[
        float, Meta(gt=0, le=0.99, description="loss at the worst price at which half is sold")
    ] = 0.015
    mae_full: Annotated[
        float, Meta(gt=0, le=0.99, description="loss at the worst price at which all is sold")
    ] = 0.02
    mae_account: Annotated[
        float,
        Meta(
            gt=0,
            le=0.99,
            description="loss of all positions, as a part of the equity, at"
            " which everything is sold",
        ),
    ] = 0.05
    profit_extension_s: Annotated[
        float, Meta(ge=0, le=1e9, description="how much longer a position is held while it earns")
    ] = 1800.0
    jump: Annotated[
        float, Meta(gt=0, le=0.99, description="a tick that jumps this far waits for another")
    ] = 0.05
    confirm_s: Annotated[float, Meta(gt=0, le=60, description="unless none comes for so long")] = (
        0.5
    )
    interval_ms: Annotated[
        float, Meta(ge=50, le=1000, description="how often the loop looks between ticks")
    ] = 100.0
    stale_after_s: Annotated[
        float, Meta(gt=0, le=1e9, description="silence of a held symbol's price that is warned of")
    ] = 60.0
    sync_late_s: Annotated[
        float, Meta(gt=0, le=1e9, description="age of the positions that is warned of")
    ] = 1.0
    vix_warning: Annotated[float, Meta(gt=0, le=1e9, description="volatility index: warned of")] = (
        25.0
    )
    vix_half: Annotated[float, Meta(gt=0, le=1e9, description="volatility index: half is sold")] = (
        30.0
    )
    vix_kill: Annotated[float, Meta(gt=0, le=1e9, description="volatility index: all is sold")] = (
        40.0
    )
    volatility_warning: Annotated[
        float, Meta(gt=0, le=1e9, description="realised volatility: warned of")
    ] = 0.03
    volatility_half: Annotated[
        float, Meta(gt=0, le=1e9, description="realised volatility: half is sold")
    ] = 0.05
    volatility_kill: Annotated[
        float, Meta(gt=0, le=1e9, description="realised volatility: all is sold")
    ] = 0.08
    holding: Annotated[HoldTimeLimits, Meta(description="how long positions may be held")] = (
        HoldTimeLimits()
    )

    def __post_init__(self) -> None:
        for less, more in (
            ("mae_half", "mae_full"),
            ("vix_warning", "vix_half"),
            ("vix_half", "vix_kill"),
            ("volatility_warning", "volatility_half"),
            ("volatility_half", "volatility_kill"),
        ):
            if getattr(self, less) > getattr(self, more):
                raise ValueError(
                    f"{less} ({getattr(self, less):g}) must not be above {more}"
                    f" ({getattr(self, more):g})"
                )


class RiskConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much may be risked, and when a position leaves by itself."""

    limits: Annotated[RiskLimitsConfig, Meta(description="what the gate holds every order to")] = (
        RiskLimitsConfig()
    )
    stops: Annotated[StopsConfig, Meta(description="when a position leaves by itself")] = (
        StopsConfig()
    )
