"""Symbols in a burst: asked for once a second, or streamed where a stream has room for them."""

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

EVERY_S = 1.0


class BurstPoller:
    """`run` it on a loop."""

    def __init__(
        self,
        bursts: BurstManager,
        asking: QuoteRequester,
        clock: Clock,
        config: FeedConfig,
        per_call: int,
    ) -> None:
        self._bursts = bursts
        self._asking = asking
        self._clock = clock
        self._most = self._polled = config.max_bursts
        self._per_call = per_call
        at = clock.monotonic_ns() / 1e9
        self._purse = BurstBudget(config.max_bursts, config.burst_s, per_call, at)
        self._stream: TickStream | None = None
        self._streamed: set[str] = set()

    def use_stream(self, stream: TickStream) -> None:
        self._stream = stream

    def apply_plan(self, plan: ScanPlan) -> None:
        """Bursts that are polled are as many as the plan has room and requests for."""
        self._polled = plan.bursts
        self._purse.fill(plan.burst_per_s, self._clock.monotonic_ns() / 1e9)

    async def run(self) -> None:
        """Once a second by the clock, not a second after the reply."""
        due_ns = self._clock.monotonic_ns()
        offered: deque[str] = deque()
        busy: set[str] = set()
        while True:
            if not offered:
                due_ns = max(due_ns, self._clock.monotonic_ns() - round(EVERY_S * 1e9))
                await self._clock.sleep((due_ns - self._clock.monotonic_ns()) / 1e9)
                due_ns += round(EVERY_S * 1e9)
                self._settle()
                bursts = self._bursts.symbols
                offered.extend(s for s in bursts if s not in self._streamed and s not in busy)
            else:
                await self._asking.enqueue(self._choose_of(offered, busy), RequestPriority.BURST)

    def _choose_of(self, offered: deque[str], busy: set[str]) -> Callable[[], Chosen]:
        def choose() -> Chosen:
            size = min(self._per_call, len(offered))
            symbols = [offered.popleft() for _ in range(size)]
            busy.update(symbols)
            self._purse.spend()
            return symbols, lambda _good: busy.difference_update(symbols)

        return choose

    def _settle(self) -> None:
        """End what is over; give to the stream what it can carry, for it costs no requests."""
        bursts, live = self._bursts, self._stream is not None and self._stream.live
        at = self._clock.monotonic_ns() / 1e9
        bursts.end(at)
        paid = self._purse.slots(bursts.left_s(at), at)
        bursts.resize(self._most if live else min(self._polled, paid))
        if self._stream is None:
            return
        for symbol in [each for each in self._streamed if each not in bursts]:
            self._stream.unsubscribe(symbol)
            self._streamed.discard(symbol)
        if not live:
            for symbol in self._streamed:
                self._stream.unsubscribe(symbol)
            self._streamed.clear()  # polled again until it is back
            return
        for symbol in bursts.symbols:
            if symbol not in self._streamed and self._stream.free > 0:
                self._stream.subscribe(symbol)
                self._streamed.add(symbol)
