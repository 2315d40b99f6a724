"""Events of one Kafka partition in flight: a queue per aggregate, or per event."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, cast

from qts.outbox.codec import account_of
from qts.outbox.delivery_runner import DeliveryRunner
from qts.outbox.kafka_offsets import OffsetTracker

if TYPE_CHECKING:
    from confluent_kafka import Message

Key = bytes | str | int | None
OnChange = Callable[[BaseException | None], None]


class PartitionConsumer:
    """Handles the events of a partition until it is revoked."""

    def __init__(
        self,
        number: int,
        offsets: OffsetTracker,
        runner: DeliveryRunner,
        locks: tuple[asyncio.Semaphore, asyncio.Lock],
        on_change: OnChange,
        account: str = "",
    ) -> None:
        self.number = number
        self.offsets = offsets
        self.tasks: set[asyncio.Task[None]] = set()
        self.running = 0
        self.changed = False  # offsets, since the last commit
        self._runner = runner
        self._slots, self._suspects = locks
        self._on_change = on_change
        self._account = account
        self._queues: dict[Key, deque[Message]] = {}
        self._uncommitted: list[asyncio.Future[None]] = []
        self._closing = False
        self._idle = asyncio.Event()

    def submit(self, message: Message) -> None:
        offset = message.offset() or 0
        if not self.offsets.add(offset):
            self._mark_changed()
            return
        if account_of(_headers(message)) != self._account:
            self.offsets.finish(offset)
            self._mark_changed()
            return
        key: Key = message.key() if self._runner.config.ordered else offset
        if key in self._queues:
            self._queues[key].append(message)
            return
        self._queues[key] = deque([message])
        task = asyncio.create_task(self._serve(key))
        self.tasks.add(task)
        task.add_done_callback(self._on_served)

    async def finish(self, timeout_s: float) -> None:
        """Start nothing more, and wait this long for running handlers."""
        self._closing = True
        if self.running:
            self._idle.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._idle.wait()
            except TimeoutError:
                pass  # the next consumer retries it
        self.cancel()

    def cancel(self) -> None:
        self._closing = True
        for task in self.tasks:
            task.cancel()

    def begin_commit(self) -> list[asyncio.Future[None]]:
        """Mark a commit as started and return the futures that wait for it."""
        self.changed = False
        waiting, self._uncommitted = self._uncommitted, []
        return waiting

    def commit_failed(self, waiting: list[asyncio.Future[None]]) -> None:
        self._uncommitted = waiting + self._uncommitted
        self.changed = True

    async def _serve(self, key: Key) -> None:
        queue = self._queues[key]
        while queue and await self._handle(queue[0]):
            queue.popleft()
        del self._queues[key]

    async def _handle(self, message: Message) -> bool:
        """Attempt until done or dead; return False if the partition closes first."""
        offset = message.offset() or 0
        suspect = self.offsets.attempts(offset) > 0  # started by a consumer that was lost
        while True:
            await self._runner.unpaused.wait()
            async with AsyncExitStack() as stack:
                if suspect:
                    await stack.enter_async_context(self._suspects)
                await stack.enter_async_context(self._slots)
                if self._closing:
                    return False
                attempt = await self._start_attempt(offset)
                result = await self._run(message, attempt)
            if result != "retry":
                self.offsets.finish(offset)
                self._mark_changed()
                return True
            suspect = False
            await self._runner.clock.sleep(self._runner.backoff_s(attempt))

    async def _start_attempt(self, offset: int) -> int:
        """Count the attempt and wait until the count is committed."""
        attempt = self.offsets.start_attempt(offset)
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._uncommitted.append(committed)
        self._mark_changed()
        try:
            await committed
        except asyncio.CancelledError:
            self.offsets.undo_attempt(offset)
            raise
        return attempt

    async def _run(self, message: Message, attempt: int) -> str:
        headers = _headers(message)
        delivery, invalid = self._runner.decode(headers, message.value() or b"", attempt)
        self.running += 1
        try:
            return (await self._runner.run(delivery, invalid)).kind
        finally:
            self.running -= 1
            if not self.running:
                self._idle.set()
                self._on_change(None)

    def _on_served(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self._on_change(None if task.cancelled() else task.exception())

    def _mark_changed(self) -> None:
        self.changed = True
        self._on_change(None)


def _headers(message: Message) -> dict[str, str]:
    pairs = cast("list[tuple[str, bytes]]", message.headers() or [])  # the client's types are wrong
    return {name: (value or b"").decode(errors="replace") for name, value in pairs}
