"""Settings of a backtest, from the structs of a live run."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from qts.brokers import FeesConfig, PaperConfig
from qts.domain import RefusedError, Timeframe
from qts.pipeline import StrategyConfig
from qts.risk import RiskLimitsConfig, StopsConfig

MAX_JUMP = 0.99  # of a price from one event to the next
CALL_TIMEOUT_S = 10.0  # as live
LATENCY_MS = 1.0  # no fill on the event that the order was decided on


class BacktestConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a backtest: account, limits, stops, fill model and costs."""

    cash: Annotated[Decimal, Meta(description="initial cash in won")] = Decimal(100_000_000)
    limits: Annotated[RiskLimitsConfig, Meta(description="limits of the pre-trade gate")] = (
        RiskLimitsConfig()
    )
    stops: Annotated[StopsConfig, Meta(description="stops of a position")] = StopsConfig()
    instances: Annotated[
        tuple[StrategyConfig, ...], Meta(description="capital and limits of strategies")
    ] = ()
    use_stops: Annotated[bool, Meta(description="whether stops close positions")] = True
    paper: Annotated[PaperConfig, Meta(description="fill model")] = PaperConfig(
        latency_ms=LATENCY_MS
    )
    costs: Annotated[FeesConfig, Meta(description="fees and taxes")] = FeesConfig()
    interval_s: Annotated[float, Meta(gt=0, description="interval of the timer")] = 1.0
    signal_ttl_s: Annotated[float, Meta(gt=0, description="how long a signal is valid")] = 5.0
    fill_timeout_s: Annotated[
        float, Meta(ge=0, description="how long an open order blocks new signals of its symbol")
    ] = 5.0
    call_limit_s: Annotated[
        float, Meta(gt=0, description="how long one call of a strategy may take")
    ] = CALL_TIMEOUT_S
    sample_s: Annotated[float, Meta(gt=0, description="interval of the equity curve")] = 60.0

    def over_bars(self, timeframe: Timeframe) -> BacktestConfig:
        """Return the settings that apply over bars.

        The next open is the latency of an order, a gap is no error of the feed that a second tick
        must confirm, and the last close is a price for as long as a bar.
        """
        age_ms = max(self.limits.max_price_age_ms, timeframe.seconds * 1000.0)
        return replace(
            self,
            paper=replace(self.paper, latency_ms=0.0, latency_jitter_ms=0.0),
            stops=replace(self.stops, jump=MAX_JUMP),
            limits=replace(self.limits, max_price_age_ms=age_ms),
        )

    def __post_init__(self) -> None:
        if not self.cash.is_finite() or self.cash <= 0:
            raise RefusedError(f"cash is {self.cash}; expected more than 0")
