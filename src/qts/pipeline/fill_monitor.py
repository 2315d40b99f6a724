"""Slippage and speed of fills, compared with the price and the moment of the decision.

GR063  a fill is worse than the decision's price by risk.fills.slippage_notice
FS094  by risk.fills.slippage_limit
GR064  a market order is filled later than risk.fills.slow_s after it was submitted
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from decimal import Decimal
from typing import NamedTuple

from qts import telemetry
from qts.domain import Clock, OrderType, Side
from qts.events import Event, EventPort
from qts.events import payloads as p
from qts.orders import SubmitResult
from qts.pipeline.portfolio import Portfolio
from qts.risk import FillLimits, OrderProposal

_SLIPPAGE = telemetry.histogram(
    "qts_fill_slippage_ratio",
    "how much worse than the decision's price a fill is, as a share of it",
    buckets=(-0.005, -0.001, 0, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.05),
)
REPEAT_INTERVAL_S = 60.0  # between two notices of a code for a symbol
_MAX_ORDERS = 2_000


class _Decided(NamedTuple):
    price: Decimal
    is_market: bool
    at_ns: int


class FillMonitor:
    """Registers its handlers when constructed; `submitted` is called on the event loop."""

    def __init__(
        self,
        engine: EventPort,
        portfolio: Portfolio,
        limits: FillLimits,
        trip: Callable[[str, str], object],
        clock: Clock,
    ) -> None:
        self._portfolio = portfolio
        self._limits = limits
        self._trip = trip
        self._clock = clock
        self._throttle = telemetry.LogThrottle(clock.monotonic_ns)
        self._orders: OrderedDict[str, _Decided] = OrderedDict()  # by intent
        engine.on("FILL_PARTIAL", self._on_fill)
        engine.on("FILL_CONFIRMED", self._on_fill)

    def submitted(self, proposal: OrderProposal, submitted: SubmitResult) -> None:
        """Remember the price that the order was decided on: its limit, or what it would meet."""
        tick = self._portfolio.last_tick(proposal.symbol)
        price = proposal.price
        if price is None and tick is not None:
            price = Decimal(str(tick.ask if proposal.side is Side.BUY else tick.bid))
        if price is None or price <= 0 or submitted.attempt_id is None:
            return
        is_market = proposal.type is OrderType.MARKET
        self._orders[str(submitted.intent_id)] = _Decided(
            price, is_market, self._clock.monotonic_ns()
        )
        if len(self._orders) > _MAX_ORDERS:
            self._orders.popitem(last=False)

    def _on_fill(self, event: Event) -> None:
        payload: p.FillPayload = event.payload
        decided = self._orders.get(payload.intent_id)
        if decided is None:  # of an earlier run, or not ours
            return
        symbol, side = payload.symbol, Side(payload.side)
        slippage = side.sign * float(p.as_decimal(payload.filled_price) / decided.price - 1)
        _SLIPPAGE.observe(slippage)
        limits = self._limits
        text = f"{side} {symbol}: {slippage:.2%} worse than {decided.price.normalize():f}"
        if slippage > limits.slippage_limit:
            self._raise("FS094", symbol, text)
        elif slippage > limits.slippage_notice:
            self._raise("GR063", symbol, text)
        took_s = (self._clock.monotonic_ns() - decided.at_ns) / 1e9
        if decided.is_market and took_s > limits.slow_s:
            self._raise("GR064", symbol, f"{side} {symbol}: filled after {took_s:.0f} s")

    def _raise(self, code: str, symbol: str, text: str) -> None:
        if self._throttle.every(REPEAT_INTERVAL_S, (code, symbol)):
            self._trip(code, text)
