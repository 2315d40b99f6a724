"""Risk limits; the defaults are small."""

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
