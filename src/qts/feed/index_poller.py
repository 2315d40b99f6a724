"""Index values of KIS: KOSPI, KOSDAQ and KOSPI 200, and a volatility index where one is set."""

from __future__ import annotations

import math
from collections.abc import Callable

from qts import telemetry
from qts.domain import Clock, OperationError
from qts.feed.config import FeedConfig
from qts.venues import IndexQuote, IndexSource, RequestPriority

# Codes of KIS. KRX calls KOSPI 1001, which is KOSDAQ here.
INDICES = {"0001": "KOSPI", "1001": "KOSDAQ", "2001": "KOSPI200"}
VOLATILITY_RANGE = (5.0, 150.0)  # KIS answers an unknown code with zeros

log = telemetry.logger("feed")


def index_codes(config: FeedConfig) -> list[str]:
    """Return the codes to request, the volatility index last."""
    return [*INDICES, *([config.volatility_index] if config.volatility_index else [])]


class IndexPoller:
    """Requests each index once per interval while the market is open."""

    def __init__(
        self,
        quotes: IndexSource,
        clock: Clock,
        config: FeedConfig,
        on_index: Callable[[IndexQuote], None],
        is_open: Callable[[], bool],
    ) -> None:
        self._quotes = quotes
        self._clock = clock
        self._codes = index_codes(config)
        self._volatility_index = config.volatility_index
        self._interval_s = config.index_interval_s
        self._on_index = on_index
        self._is_open = is_open

    async def run(self) -> None:
        """Poll until cancelled; a failed request is repeated with the next interval."""
        while True:
            began_ns = self._clock.monotonic_ns()
            if self._is_open():
                for code in self._codes:
                    await self._poll(code)
            passed_s = (self._clock.monotonic_ns() - began_ns) / 1e9
            await self._clock.sleep(max(0.05, self._interval_s - passed_s))

    async def _poll(self, code: str) -> None:
        try:
            quote = await self._quotes.index(code, RequestPriority.WATCHED)
        except OperationError as error:
            if due := telemetry.log_every(60.0, f"index {code}"):
                log.warning("index not read; retrying", index=code, error=str(error), **due)
            return
        volatile = code == self._volatility_index
        low, high = VOLATILITY_RANGE if volatile else (0.0, math.inf)
        if not low < quote.value < high:
            if due := telemetry.log_every(600.0, f"index value {code}"):
                log.warning("index has no value; skipped", index=code, value=quote.value, **due)
            return
        name = INDICES.get(code, code)
        self._on_index(IndexQuote(name, quote.value, quote.change, volatile))
