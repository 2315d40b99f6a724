"""Requests for quotes: put in line, granted, and only then given their symbols."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from qts import telemetry
from qts.domain import Clock, OperationError
from qts.feed.source import QuoteSource
from qts.venues import Quote, RateLimitedError, RequestPriority, VenueRejectedError

_RETRY_WAIT_S = 0.5  # after a lost reply: the network needs a breath

Chosen = tuple[Sequence[str], Callable[[bool], None]]  # the symbols, and who is told how it went

log = telemetry.logger("feed")


class QuoteRequester:
    """All requests under way; `broken` ends by an error that stays: a wrong key, or a bug."""

    def __init__(self, source: QuoteSource, clock: Clock, take: Callable[[Quote], None]) -> None:
        self._source = source
        self._clock = clock
        self._take = take
        self._tasks: set[asyncio.Task[None]] = set()
        self._broken: asyncio.Future[None] | None = None
        self.polls = self.failed = self.refused = 0

    async def enqueue(self, choose: Callable[[], Chosen], priority: RequestPriority) -> None:
        """Put one request in line; comes back when it was granted, not when it was answered."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._request(choose, priority, granted))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.done() or granted.cancelled():
                task.cancel()
            raise

    async def wait_fatal(self) -> None:
        """Until an error that stays, which it raises."""
        if self._broken is None:
            self._broken = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._broken)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._broken is not None:
            self._broken.cancel()
            self._broken = None

    async def _request(
        self,
        choose: Callable[[], Chosen],
        priority: RequestPriority,
        granted: asyncio.Future[None],
    ) -> None:
        done: Callable[[bool], None] = _nothing

        def chosen() -> Sequence[str]:
            nonlocal done
            symbols, done = choose()
            _settle(granted)
            return symbols

        good = False
        try:
            for quote in await self._source.quotes(chosen, priority):
                self._take(quote)
            good = True
            self.polls += 1
        except RateLimitedError:
            self.refused += 1
        except OperationError as error:
            self.failed += 1
            good = isinstance(
                error, VenueRejectedError
            )  # asking again at once would change nothing
            if due := telemetry.log_every(10.0, "poll failed"):
                log.warning("a poll failed", reason=str(error), **due)
            await self._clock.sleep(_RETRY_WAIT_S)
        finally:
            done(good)
            _settle(granted)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._broken is not None and not self._broken.done():
            self._broken.set_exception(error)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _nothing(_good: bool) -> None:
    """No symbols were chosen yet, so none need to be given back."""
