"""Symbols in a burst: polled once a second, or streamed where the stream has capacity."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from qts.domain import Clock
from qts.feed.burst import BurstBudget, BurstManager
from qts.feed.config import FeedConfig
from qts.feed.planner import ScanPlan
from qts.feed.quote_requests import Chosen, QuoteRequester
from qts.feed.source import TickStream
from qts.venues import RequestPriority

INTERVAL_S = 1.0


class BurstPoller:
    """Task that polls bursts on one event loop."""

    def __init__(
        self,
        bursts: BurstManager,
        requester: QuoteRequester,
        clock: Clock,
        config: FeedConfig,
        per_call: int,
    ) -> None:
        self._bursts = bursts
        self._requester = requester
        self._clock = clock
        self._max_bursts = self._max_polled = config.max_bursts
        self._per_call = per_call
        at = clock.monotonic_ns() / 1e9
        self._budget = BurstBudget(config.max_bursts, config.burst_s, per_call, at)
        self._stream: TickStream | None = None
        self._streamed: set[str] = set()

    def attach_stream(self, stream: TickStream) -> None:
        self._stream = stream

    def apply_plan(self, plan: ScanPlan) -> None:
        """Limit polled bursts to what the plan allows, and set the income of the budget."""
        self._max_polled = plan.bursts
        self._budget.set_income(plan.burst_per_s, self._clock.monotonic_ns() / 1e9)

    async def run(self) -> None:
        """Poll once a second by the clock, not a second after the reply."""
        due_ns = self._clock.monotonic_ns()
        queue: deque[str] = deque()
        in_flight: set[str] = set()
        while True:
            if not queue:
                due_ns = max(due_ns, self._clock.monotonic_ns() - round(INTERVAL_S * 1e9))
                await self._clock.sleep((due_ns - self._clock.monotonic_ns()) / 1e9)
                due_ns += round(INTERVAL_S * 1e9)
                self._update_bursts()
                bursts = self._bursts.symbols
                queue.extend(s for s in bursts if s not in self._streamed and s not in in_flight)
            else:
                choose = self._chooser(queue, in_flight)
                await self._requester.enqueue(choose, RequestPriority.BURST)

    def _chooser(self, queue: deque[str], in_flight: set[str]) -> Callable[[], Chosen]:
        def choose() -> Chosen:
            size = min(self._per_call, len(queue))
            symbols = [queue.popleft() for _ in range(size)]
            in_flight.update(symbols)
            self._budget.spend()
            return symbols, lambda _succeeded: in_flight.difference_update(symbols)

        return choose

    def _update_bursts(self) -> None:
        """End bursts that are over; stream as many as possible, since that costs no requests."""
        bursts, live = self._bursts, self._stream is not None and self._stream.live
        at = self._clock.monotonic_ns() / 1e9
        bursts.end(at)
        affordable = self._budget.slots(bursts.remaining_s(at), at)
        bursts.resize(self._max_bursts if live else min(self._max_polled, affordable))
        if self._stream is None:
            return
        for symbol in [each for each in self._streamed if each not in bursts]:
            self._stream.unsubscribe(symbol)
            self._streamed.discard(symbol)
        if not live:
            for symbol in self._streamed:
                self._stream.unsubscribe(symbol)
            self._streamed.clear()  # polled until the stream is back
            return
        for symbol in bursts.symbols:
            if symbol not in self._streamed and self._stream.free > 0:
                self._stream.subscribe(symbol)
                self._streamed.add(symbol)
