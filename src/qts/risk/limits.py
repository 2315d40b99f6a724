"""How much may be risked. The defaults are small: whoever wants more says so."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

import msgspec
from msgspec import Meta

from qts.domain import Refused

_PARTS = ("max_exposure", "max_symbol_exposure", "daily_loss", "price_band")


class LimitsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the gate holds every order to. Money is in won, parts are of the account's equity."""

    max_order_value: Annotated[Decimal, Meta(description="largest value of one order, in won")] = (
        Decimal(500_000)
    )
    min_order_value: Annotated[Decimal, Meta(description="smallest value of one entry, in won")] = (
        Decimal(5_000)
    )
    max_quantity: Annotated[Decimal, Meta(description="largest quantity of one order")] = Decimal(
        10_000
    )
    max_exposure: Annotated[
        Decimal, Meta(description="part of the equity that may be in the market, orders included")
    ] = Decimal("0.95")
    max_symbol_exposure: Annotated[
        Decimal, Meta(description="part of the equity that may be in one symbol")
    ] = Decimal("0.15")
    max_open_symbols: Annotated[int, Meta(description="symbols held at once", ge=1)] = 15
    daily_loss: Annotated[
        Decimal, Meta(description="part of the equity that a day may cost before entries stop")
    ] = Decimal("0.03")
    orders_per_day: Annotated[int, Meta(description="orders of a day", ge=1)] = 100
    orders_per_minute: Annotated[int, Meta(description="orders of any 60 seconds", ge=1)] = 30
    price_band: Annotated[
        Decimal, Meta(description="how far a limit price may lie from the market, as a part of it")
    ] = Decimal("0.05")
    max_price_age_ms: Annotated[
        float, Meta(description="age of the price an order may be based on", gt=0)
    ] = 2000.0
    short_selling: Annotated[bool, Meta(description="whether more may be sold than is held")] = (
        False
    )

    def __post_init__(self) -> None:
        for name in ("max_order_value", "min_order_value", "max_quantity"):
            value = getattr(self, name)
            if not value.is_finite() or value <= 0:
                raise Refused(f"risk.limits.{name} is {value}; expected more than 0")
        for name in _PARTS:
            value = getattr(self, name)
            if not value.is_finite() or not 0 < value <= 1:
                raise Refused(f"risk.limits.{name} is {value}; expected above 0, at most 1")
        if self.min_order_value > self.max_order_value:
            raise Refused(
                f"risk.limits.min_order_value is {self.min_order_value}, above max_order_value"
                f" {self.max_order_value}"
            )
