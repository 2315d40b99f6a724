"""Settings of a backtest: the same structs that a live run is made of."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

import msgspec
from msgspec import Meta

from qts.brokers import FeesConfig, PaperConfig
from qts.domain import RefusedError
from qts.risk import RiskLimitsConfig, StopsConfig

LATENCY_MS = 1.0  # an order meets the next event of its symbol, never the one it was decided on


class BacktestConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cash: Annotated[Decimal, Meta(description="won at the start")] = Decimal(100_000_000)
    limits: Annotated[RiskLimitsConfig, Meta(description="what the gate holds every order to")] = (
        RiskLimitsConfig()
    )
    stops: Annotated[StopsConfig, Meta(description="when a position leaves by itself")] = (
        StopsConfig()
    )
    use_stops: Annotated[bool, Meta(description="whether the stops watch over positions")] = True
    paper: Annotated[PaperConfig, Meta(description="how kindly orders are filled")] = PaperConfig(
        latency_ms=LATENCY_MS
    )
    costs: Annotated[FeesConfig, Meta(description="fees and taxes")] = FeesConfig()
    interval_s: Annotated[float, Meta(gt=0, description="between two beats")] = 1.0
    signal_ttl_s: Annotated[float, Meta(gt=0, description="how long a signal is good for")] = 5.0
    fill_timeout_s: Annotated[
        float, Meta(ge=0, description="how long a symbol rests while its order is under way")
    ] = 5.0
    sample_s: Annotated[float, Meta(gt=0, description="between points of the equity curve")] = 60.0

    def __post_init__(self) -> None:
        if not self.cash.is_finite() or self.cash <= 0:
            raise RefusedError(f"the cash is {self.cash}; expected more than 0")
