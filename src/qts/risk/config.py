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
    profit_jump: Annotated[
        float,
        Meta(
            gt=0,
            le=0.99,
            description="change of the open profit between two checks, as a fraction of the"
            " equity, that raises AN020",
        ),
    ] = 0.02
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
    volatility_window_s: Annotated[
        float, Meta(ge=60, le=86_400, description="time over which the range of an index counts")
    ] = 1800.0
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


class PositionStops(msgspec.Struct, frozen=True, kw_only=True):
    """Stops of the positions of one strategy, where they differ from those of all."""

    trail_arm: float
    trail: float
    trail_min_distance: float
    mae_half: float
    mae_full: float
    profit_extension_s: float
    max_hold_s: float | None = None  # None: by the kind of the strategy; 0: unlimited

    @property
    def rules(self) -> tuple[float, float, float, float, float, float]:
        """The rules as the native stops take them."""
        trailing = self.trail_arm, self.trail, self.trail_min_distance
        return (*trailing, self.mae_half, self.mae_full, self.profit_extension_s)


class StrategyStopsConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Stops of the positions that one strategy opens, in place of those of risk.stops."""

    trail_arm: Annotated[float, Meta(gt=0, le=0.99)] | None = None
    trail: Annotated[float, Meta(gt=0, le=0.99)] | None = None
    trail_min_distance: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    mae_half: Annotated[float, Meta(gt=0, le=0.99)] | None = None
    mae_full: Annotated[float, Meta(gt=0, le=0.99)] | None = None
    profit_extension_s: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    max_hold_s: Annotated[float, Meta(ge=0, le=1e9)] | None = None

    def over(self, stops: StopsConfig) -> PositionStops | None:
        """Return the stops with these in place of the others; None: they are those of all."""
        if self == StrategyStopsConfig():
            return None
        given = {
            name: each for name, each in msgspec.structs.asdict(self).items() if each is not None
        }
        names = [name for name in PositionStops.__struct_fields__ if name != "max_hold_s"]
        found = PositionStops(**{name: getattr(stops, name) for name in names} | given)
        if found.mae_half > found.mae_full:
            raise ValueError(
                f"mae_half ({found.mae_half:g}) must not be above mae_full ({found.mae_full:g})"
            )
        return found


class FillLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fills that are reported; slippage is a fraction of the price that was decided on."""

    slippage_notice: Annotated[
        float, Meta(gt=0, le=1, description="slippage of a fill that raises GR063")
    ] = 0.003
    slippage_limit: Annotated[
        float, Meta(gt=0, le=1, description="slippage of a fill that raises FS094")
    ] = 0.005
    slow_s: Annotated[
        float, Meta(gt=0, le=3600, description="time to the fill of a market order; above, GR064")
    ] = 30.0


class RiskConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Risk limits and stops."""

    limits: Annotated[RiskLimitsConfig, Meta(description="limits of the gate")] = RiskLimitsConfig()
    stops: Annotated[StopsConfig, Meta(description="when stops close a position")] = StopsConfig()
    fills: Annotated[FillLimits, Meta(description="which fills are reported")] = FillLimits()

    @property
    def exact_limits(self) -> RiskLimits:
        """The limits as decimals; what the stops sell at their limit must be sellable."""
        limits = self.limits.exact
        fall = max(limits.exit_margin, Decimal(str(self.stops.mae_full)))
        return msgspec.structs.replace(limits, exit_margin=fall)
