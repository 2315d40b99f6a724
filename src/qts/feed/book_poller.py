"""Order books of symbols with an open order that no stream delivers: one request at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from qts import telemetry
from qts.domain import Clock, OperationError, OrderBook
from qts.venues import QuoteSource, RequestPriority

MAX_SHARE = 0.1  # of the key's requests in a second

log = telemetry.logger("feed")


def book_interval_s(per_second: int) -> float:
    """Return the seconds between two requests of a key with that limit."""
    return max(1.0, 1 / (MAX_SHARE * per_second))


class BookPoller:
    """Polls the symbols that `due` returns, the longest unpolled first; for one event loop."""

    def __init__(
        self,
        source: QuoteSource,
        clock: Clock,
        interval_s: float,
        due: Callable[[], Sequence[str]],
        on_book: Callable[[OrderBook], None],
    ) -> None:
        self._source = source
        self._clock = clock
        self._interval_s = interval_s
        self._due = due
        self._on_book = on_book
        self._polled_ns: dict[str, int] = {}

    async def run(self) -> None:
        """Poll until cancelled; a failed request is repeated in its turn."""
        while True:
            due = self._due()
            self._polled_ns = {s: at for s, at in self._polled_ns.items() if s in due}
            if due:
                symbol = min(due, key=lambda each: self._polled_ns.get(each, -math.inf))
                self._polled_ns[symbol] = self._clock.monotonic_ns()
                await self._poll(symbol)
            await self._clock.sleep(self._interval_s)

    async def _poll(self, symbol: str) -> None:
        try:
            book = await self._source.order_book(symbol, RequestPriority.BURST)
        except OperationError as error:
            if due := telemetry.log_every(60.0, "order book"):
                log.warning("order book not read; retrying", symbol=symbol, error=str(error), **due)
            return
        if not book.bids and not book.asks:  # no book: a symbol that the venue does not list
            return
        self._on_book(msgspec.structs.replace(book, at=self._clock.now().timestamp()))
