"""Settings of the risk limits and of the stops."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

import msgspec
from msgspec import Meta


class StrategyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one strategy may hold and order, beside the limits of its account; None: no limit."""

    capital: Decimal | None = None
    max_order_value: Decimal | None = None
    max_symbol_exposure: Decimal | None = None  # of its capital
    max_open_symbols: int | None = None
    orders_per_day: int | None = None

    @property
    def capital_per_symbol(self) -> Decimal | None:
        """The most that may be in one symbol; None: no limit beside the capital."""
        if self.capital is None or self.max_symbol_exposure is None:
            return None
        return self.capital * self.max_symbol_exposure


class RiskLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of RiskLimitsConfig in exact numbers."""

    max_order_value: Decimal
    min_order_value: Decimal
    exit_margin: Decimal = Decimal(0)  # of a journal from before there was one
    max_quantity: Decimal
    max_exposure: Decimal
    max_symbol_exposure: Decimal
    max_open_symbols: int
    daily_loss: Decimal
    orders_per_day: int
    orders_per_minute: int
    price_band: Decimal
    max_price_age_ms: float
    short_selling: bool
    strategies: dict[str, StrategyLimits] = {}  # by their names


class RiskLimitsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of the gate: values in won, fractions of the equity."""

    max_order_value: Annotated[
        int, Meta(ge=1, le=10**15, description="largest value of one order, in won")
    ] = 500_000
    min_order_value: Annotated[
        int, Meta(ge=1, le=10**15, description="smallest value of one entry, in won")
    ] = 5_000
    exit_margin: Annotated[
        float,
        Meta(
            ge=0,
            le=0.9,
            description="how far an entry may fall and still be worth the smallest order of its"
            " market (Upbit: 5,000 won); at least stops.mae_full",
        ),
    ] = 0.1
    max_quantity: Annotated[
        float, Meta(gt=0, le=1e12, description="largest quantity of one order")
    ] = 10_000.0
    max_exposure: Annotated[
        float,
        Meta(
            gt=0, le=1, description="fraction of the equity that may be invested, orders included"
        ),
    ] = 0.95
    max_symbol_exposure: Annotated[
        float, Meta(gt=0, le=1, description="fraction of the equity that may be in one symbol")
    ] = 0.15
    max_open_symbols: Annotated[int, Meta(ge=1, le=10_000, description="symbols held at once")] = 15
    daily_loss: Annotated[
        float,
        Meta(gt=0, le=1, description="fraction of the equity whose loss in a day stops entries"),
    ] = 0.03
    orders_per_day: Annotated[int, Meta(ge=1, le=1_000_000, description="orders of a day")] = 100
    orders_per_minute: Annotated[
        int, Meta(ge=1, le=1_000_000, description="orders of any 60 seconds")
    ] = 30
    price_band: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="largest distance of a limit price from the market, as a fraction",
        ),
    ] = 0.05
    max_price_age_ms: Annotated[
        float,
        Meta(gt=0, le=3_600_000, description="age of the price an order may be based on"),
    ] = 2000.0
    short_selling: Annotated[bool, Meta(description="whether more may be sold than is held")] = (
        False
    )

    def __post_init__(self) -> None:
        if self.min_order_value > self.max_order_value:
            raise ValueError(
                f"min_order_value ({self.min_order_value}) must not be above max_order_value"
                f" ({self.max_order_value})"
            )

    @property
    def exact(self) -> RiskLimits:
        """The limits as decimals: 0.15 is exact."""
        return msgspec.convert(
            msgspec.to_builtins(self, str_keys=True), RiskLimits, dec_hook=_exact
        )


class StrategyLimitsConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Limits of one strategy, as in risk.limits; those of the account hold beside them."""

    max_order_value: (
        Annotated[int, Meta(ge=1, le=10**15, description="largest value of one order, in won")]
        | None
    ) = None
    max_symbol_exposure: (
        Annotated[float, Meta(gt=0, le=1, description="fraction of its capital in one symbol")]
        | None
    ) = None
    max_open_symbols: (
        Annotated[int, Meta(ge=1, le=10_000, description="symbols it holds at once")] | None
    ) = None
    orders_per_day: (
        Annotated[int, Meta(ge=1, le=1_000_000, description="its orders of a day")] | None
    ) = None

    def exact(self, capital: int | None) -> StrategyLimits:
        """Return the limits as decimals, with the capital."""
        found = {**msgspec.structs.asdict(self), "capital": capital}
        return msgspec.convert(found, StrategyLimits, dec_hook=_exact)


def _exact(kind: type, value: object) -> object:
    return Decimal(str(value)) if kind is Decimal else value


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
