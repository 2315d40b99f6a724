"""Settings of the risk limits and of the stops."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

import msgspec
from msgspec import Meta

from qts.risk.limits import RiskLimits, RiskLimitsConfig


class HoldTimeLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Longest hold time by the kind of the strategy; 0: unlimited."""

    scalp_s: Annotated[float, Meta(ge=0, le=1e9, description="a scalp")] = 3600.0
    swing_s: Annotated[float, Meta(ge=0, le=1e9, description="a swing trade")] = 604_800.0
    portfolio_s: Annotated[float, Meta(ge=0, le=1e9, description="a portfolio position")] = 0.0


class StopsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Stops of a position; fractions of the average price."""

    trail_arm: Annotated[
        float, Meta(gt=0, le=0.99, description="profit that arms the trailing stop")
    ] = 0.01
    trail: Annotated[
        float, Meta(gt=0, le=0.99, description="distance of the trailing stop from the best price")
    ] = 0.005
    trail_min_distance: Annotated[
        float,
        Meta(ge=0, le=1e9, description="smallest distance of that stop, in won; 0: none"),
    ] = 0.0
    mae_half: Annotated[
        float, Meta(gt=0, le=0.99, description="adverse excursion at which half is sold")
    ] = 0.015
    mae_full: Annotated[
        float, Meta(gt=0, le=0.99, description="adverse excursion at which all is sold")
    ] = 0.02
    mae_account: Annotated[
        float,
        Meta(
            gt=0,
            le=0.99,
            description="open loss of the account, as a fraction of the equity, at which"
            " everything is sold",
        ),
    ] = 0.05
    profit_extension_s: Annotated[
        float, Meta(ge=0, le=1e9, description="how much longer a profitable position is held")
    ] = 1800.0
    jump: Annotated[
        float,
        Meta(gt=0, le=0.99, description="a jump this large needs a second tick"),
    ] = 0.05
    confirm_s: Annotated[
        float, Meta(gt=0, le=60, description="longest wait for that second tick")
    ] = 0.5
    interval_ms: Annotated[
        float, Meta(ge=50, le=1000, description="interval of the checks between ticks")
    ] = 100.0
    stale_after_s: Annotated[
        float, Meta(gt=0, le=1e9, description="age of a position's price that raises FS105")
    ] = 2.0
    sync_late_s: Annotated[
        float, Meta(gt=0, le=1e9, description="age of the positions that raises a warning")
    ] = 1.0
    vix_warning: Annotated[float, Meta(gt=0, le=1e9, description="volatility index: warning")] = (
        25.0
    )
    vix_half: Annotated[float, Meta(gt=0, le=1e9, description="volatility index: half is sold")] = (
        30.0
    )
    vix_kill: Annotated[float, Meta(gt=0, le=1e9, description="volatility index: all is sold")] = (
        40.0
    )
    volatility_warning: Annotated[
        float, Meta(gt=0, le=1e9, description="realised volatility: warning")
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
    """Risk limits and stops."""

    limits: Annotated[RiskLimitsConfig, Meta(description="limits of the gate")] = RiskLimitsConfig()
    stops: Annotated[StopsConfig, Meta(description="when stops close a position")] = StopsConfig()

    @property
    def exact_limits(self) -> RiskLimits:
        """The limits as decimals; what the stops sell at their limit must be sellable."""
        limits = self.limits.exact
        fall = max(limits.exit_margin, Decimal(str(self.stops.mae_full)))
        return msgspec.structs.replace(limits, exit_margin=fall)
