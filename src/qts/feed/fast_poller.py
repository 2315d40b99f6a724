"""Symbols priced every second: watched ones first, then those in a burst.

    held, on order ──▶ a slot of the stream ── none, refused, cut or silent ──▶ polled (WATCHED)
    in a burst     ──▶ a slot that is left  ── none, refused, cut or silent ──▶ polled (BURST)

Every poll is decided by what the stream has acknowledged and delivered, not by what was requested
of it: a symbol is left to the stream only while the connection shows life and a price has arrived
after the registration. A price that has not changed is as fresh as its last confirmation.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Collection, Sequence

from qts.domain import Clock
from qts.feed.bursts import BurstBudget, BurstManager
from qts.feed.config import FeedConfig
from qts.feed.planner import ScanPlan, watch_interval_s
from qts.feed.requests import Chosen, QuoteRequester
from qts.venues import RequestPriority, TickStream

INTERVAL_S = 1.0
SILENT_S = 0.5  # a connection that has been silent for longer confirms no price
HEARTBEAT_S = 15.0  # KIS pings about every ten seconds
REGISTERED_S = 1.0  # a reply within this time may be older than the registration
REGISTER_AGAIN_S = 60.0  # after a refusal
LATE_S = 2.0  # a poll without a reply for this long does not hold back the next


class SymbolQueue:
    """Polls the symbols that `due` returns once a second, by the clock, not after the reply."""

    def __init__(self, requester: QuoteRequester, clock: Clock, per_call: int) -> None:
        self._requester = requester
        self._clock = clock
        self._per_call = per_call
        self._queue: deque[str] = deque()
        self._in_flight: dict[str, float] = {}

    async def run(
        self,
        priority: RequestPriority,
        due: Callable[[float], Sequence[str]],
        on_call: Callable[[], None],
    ) -> None:
        self._queue.clear()
        due_ns = self._clock.monotonic_ns()
        while True:
            if self._queue:
                await self._requester.enqueue(lambda: self._choose(on_call), priority)
                continue
            due_ns = max(due_ns, self._clock.monotonic_ns() - round(INTERVAL_S * 1e9))
            await self._clock.sleep((due_ns - self._clock.monotonic_ns()) / 1e9)
            due_ns += round(INTERVAL_S * 1e9)
            at = self._at()
            self._queue.extend(
                symbol
                for symbol in due(at)
                if at - self._in_flight.get(symbol, -math.inf) >= LATE_S
            )

    def _choose(self, on_call: Callable[[], None]) -> Chosen:
        symbols = [self._queue.popleft() for _ in range(min(self._per_call, len(self._queue)))]
        at = self._at()
        self._in_flight.update(dict.fromkeys(symbols, at))
        on_call()

        def done(_succeeded: bool) -> None:
            for symbol in symbols:
                if self._in_flight.get(symbol) == at:
                    del self._in_flight[symbol]

        return symbols, done

    def _at(self) -> float:
        return self._clock.monotonic_ns() / 1e9


class FastPoller:
    """Watched symbols and bursts of one event loop; `on_change` is called when a plan is due."""

    def __init__(
        self,
        bursts: BurstManager,
        requester: QuoteRequester,
        clock: Clock,
        config: FeedConfig,
        per_call: int,
        on_change: Callable[[], None],
    ) -> None:
        self._bursts = bursts
        self._clock = clock
        self._max_bursts = self._max_polled = config.max_bursts
        self._per_call = per_call
        self._on_change = on_change
        self._budget = BurstBudget(config.max_bursts, config.burst_s, per_call, self._at())
        self._stream: TickStream | None = None
        self._retry_at: dict[str, float] = {}
        self._watched: dict[str, float] = {}  # when the price was last confirmed
        self._polled_at: dict[str, float] = {}
        self._on_order: list[str] = []
        self._planned = (0, 0, 0, 0)
        self._watch_max_per_s = self._permits = 1.0
        self._watch_queue = SymbolQueue(requester, clock, per_call)
        self._burst_queue = SymbolQueue(requester, clock, per_call)

    def attach_stream(self, stream: TickStream) -> None:
        self._stream = stream

    def watch(self, symbols: Sequence[str], on_order: Collection[str] = ()) -> None:
        """Replace the watched symbols, most important first; `on_order` have an open order."""
        at = self._at()
        self._on_order = [symbol for symbol in symbols if symbol in on_order]
        self._watched = {symbol: self._watched.get(symbol, at) for symbol in symbols}
        self._polled_at = {s: t for s, t in self._polled_at.items() if s in self._watched}
        self._assign_stream(at)

    @property
    def watched(self) -> tuple[int, int, int, int]:
        """The numbers of watched symbols that are polled, and that are streamed; of order books."""
        streamed = sum(self._registered_at(symbol) is not None for symbol in self._watched)
        books = len(self._stream.books) if self._stream is not None else 0
        return len(self._watched) - streamed, streamed, len(self.unstreamed_books()), books

    def unstreamed_books(self) -> list[str]:
        """Return the symbols with an open order whose order book no stream delivers."""
        stream = self._stream
        streamed = stream.books if stream is not None and stream.live else ()
        return [symbol for symbol in self._on_order if symbol not in streamed]

    def confirm(self, symbol: str, at: float) -> None:
        """Record that a quote of the symbol has arrived, from a poll or the stream."""
        if symbol in self._watched:
            self._watched[symbol] = at

    def restart_ages(self) -> None:
        """Count ages from now: the market has opened."""
        self._watched = dict.fromkeys(self._watched, self._at())

    def price_age_s(self, symbol: str) -> float | None:
        """Return the seconds since the price was last confirmed; None if it is not watched."""
        confirmed, at = self._watched.get(symbol), self._at()
        if confirmed is None:
            return None
        age = at - confirmed
        if self._stream is not None and self._has_price_of_stream(symbol):
            silence = self._stream.silence_s
            if silence <= HEARTBEAT_S and not self._may_poll_each_second:
                return 0.0  # a connection between two heartbeats
            age = min(age, silence)
        return max(0.0, age)

    def apply_plan(self, plan: ScanPlan) -> None:
        """Limit polls to what the plan allows, and set the income of the burst budget."""
        self._max_polled = plan.bursts
        demand = plan.demand
        self._planned = (demand.watched, demand.streamed, demand.books, demand.streamed_books)
        self._watch_max_per_s = plan.watch_max_per_s
        self._budget.set_income(plan.burst_per_s, self._at())

    async def run(self) -> None:
        """Poll until cancelled."""
        watched = self._watch_queue.run(RequestPriority.WATCHED, self._due_watched, lambda: None)
        bursts = self._burst_queue.run(RequestPriority.BURST, self._due_bursts, self._budget.spend)
        tasks = {asyncio.ensure_future(each) for each in (watched, bursts)}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    # -- what is due

    def _due_watched(self, at: float) -> list[str]:
        """Return what the plan allows to poll now, the longest unpolled first."""
        self._assign_stream(at)
        self._confirm_streamed(at)
        if self.watched != self._planned:
            self._on_change()
        polled = sorted(
            (symbol for symbol in self._watched if not self._is_streamed(symbol)),
            key=lambda symbol: self._polled_at.get(symbol, -math.inf),
        )
        rate = self._watch_max_per_s
        self._permits = min(max(1.0, rate) + 1.0, self._permits + rate * INTERVAL_S)
        calls = min(math.ceil(len(polled) / self._per_call), math.floor(self._permits + 1e-9))
        self._permits -= calls
        due = polled[: calls * self._per_call]
        self._polled_at.update(dict.fromkeys(due, at))
        return due

    def _due_bursts(self, at: float) -> list[str]:
        bursts, stream = self._bursts, self._stream
        bursts.end(at)
        affordable = min(self._max_polled, self._budget.slots(bursts.remaining_s(at), at))
        streamed = max(0, stream.capacity - len(self._watched)) if stream and stream.live else 0
        bursts.resize(min(self._max_bursts, max(streamed, affordable)))
        self._assign_stream(at)
        polled = [s for s in bursts.symbols if s not in self._watched and not self._is_streamed(s)]
        return polled[:affordable]

    # -- the stream

    def _assign_stream(self, at: float) -> None:
        """Give the slots to watched symbols, then to bursts; register again what was refused."""
        stream = self._stream
        if stream is None:
            return
        held = sorted(self._watched, key=lambda symbol: symbol not in stream.symbols)
        bursts = [symbol for symbol in self._bursts.symbols if symbol not in self._watched]
        wanted = dict.fromkeys([*held, *bursts][: stream.capacity])
        for symbol in [each for each in stream.symbols if each not in wanted]:
            stream.unsubscribe(symbol)
        self._retry_at = {s: t for s, t in self._retry_at.items() if s in wanted}
        for symbol in wanted:
            if symbol not in stream.symbols and at >= self._retry_at.get(symbol, -math.inf):
                stream.subscribe(symbol)
                self._retry_at[symbol] = at + REGISTER_AGAIN_S
        stream.set_books([symbol for symbol in wanted if symbol in stream.symbols])

    def _registered_at(self, symbol: str) -> float | None:
        return None if self._stream is None else self._stream.registered_at(symbol)

    def _has_price_of_stream(self, symbol: str) -> bool:
        """Return whether a quote has arrived since the registration: none can be missing."""
        registered = self._registered_at(symbol)
        if registered is None:
            return False
        return self._watched.get(symbol, math.inf) > registered + REGISTERED_S

    def _confirm_streamed(self, at: float) -> None:
        """Record how long the stream has confirmed its symbols: it may be cut before the next."""
        if self._stream is None:
            return
        heard_at = at - self._stream.silence_s
        for symbol, confirmed in self._watched.items():
            if confirmed < heard_at and self._has_price_of_stream(symbol):
                self._watched[symbol] = heard_at

    def _is_streamed(self, symbol: str) -> bool:
        stream = self._stream
        return (
            stream is not None
            and self._has_price_of_stream(symbol)
            and (symbol not in self._watched or stream.silence_s <= SILENT_S)
        )

    @property
    def _may_poll_each_second(self) -> bool:
        count, rate = len(self._watched), self._watch_max_per_s
        return watch_interval_s(count, self._per_call, rate) <= INTERVAL_S

    def _at(self) -> float:
        return self._clock.monotonic_ns() / 1e9
