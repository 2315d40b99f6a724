"""Quote requests whose symbols are chosen when the rate limiter grants them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from qts import telemetry
from qts.domain import Clock, OperationError
from qts.venues import Quote, QuoteSource, RateLimitedError, RequestPriority, VenueRejectedError

_RETRY_INTERVAL_S = 0.5  # after a lost reply

Chosen = tuple[
    Sequence[str], Callable[[bool], None]
]  # the symbols, and a callback for success or failure

log = telemetry.logger("feed")


class QuoteRequester:
    """Requests in flight; `wait_fatal` raises a permanent error: a wrong key, or a bug."""

    def __init__(
        self, source: QuoteSource, clock: Clock, on_quote: Callable[[Quote], None]
    ) -> None:
        self._source = source
        self._clock = clock
        self._on_quote = on_quote
        self._tasks: set[asyncio.Task[None]] = set()
        self._fatal: asyncio.Future[None] | None = None
        self.polls = self.failed = self.refused = 0

    async def enqueue(self, choose: Callable[[], Chosen], priority: RequestPriority) -> None:
        """Queue a request; return when it is granted, not when the reply arrives."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._request(choose, priority, granted))
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.done() or granted.cancelled():
                task.cancel()
            raise

    async def wait_fatal(self) -> None:
        """Wait for a permanent error and raise it."""
        if self._fatal is None:
            self._fatal = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._fatal)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._fatal is not None:
            self._fatal.cancel()
            self._fatal = None

    async def _request(
        self,
        choose: Callable[[], Chosen],
        priority: RequestPriority,
        granted: asyncio.Future[None],
    ) -> None:
        done: Callable[[bool], None] = _ignore

        def chosen() -> Sequence[str]:
            nonlocal done
            symbols, done = choose()
            _settle(granted)
            return symbols

        succeeded = False
        try:
            for quote in await self._source.quotes(chosen, priority):
                self._on_quote(quote)
            succeeded = True
            self.polls += 1
        except RateLimitedError:
            self.refused += 1
        except OperationError as error:
            self.failed += 1
            succeeded = isinstance(error, VenueRejectedError)  # a retry would change nothing
            if due := telemetry.log_every(10.0, "poll failed"):
                log.warning("poll failed; retrying", error=str(error), **due)
            await self._clock.sleep(_RETRY_INTERVAL_S)
        finally:
            done(succeeded)
            _settle(granted)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._fatal is not None and not self._fatal.done():
            self._fatal.set_exception(error)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _ignore(_succeeded: bool) -> None:
    """Ignore the result of a request that had no symbols yet."""
