"""The events of one Kafka partition in hand: a line for each aggregate, or for each event."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, cast

from qts.outbox.delivery_runner import DeliveryRunner
from qts.outbox.kafka_offsets import OffsetTracker

if TYPE_CHECKING:
    from confluent_kafka import Message

Key = bytes | str | int | None
Note = Callable[[BaseException | None], None]


class PartitionConsumer:
    """Runs until its partition goes to somebody else."""

    def __init__(
        self,
        number: int,
        ledger: OffsetTracker,
        station: DeliveryRunner,
        gates: tuple[asyncio.Semaphore, asyncio.Lock],
        note: Note,
    ) -> None:
        self.number = number
        self.ledger = ledger
        self.tasks: set[asyncio.Task[None]] = set()
        self.running = 0
        self.changed = False  # the ledger, since the last commit
        self._station = station
        self._slots, self._suspects = gates
        self._note = note
        self._lines: dict[Key, deque[Message]] = {}
        self._unnoted: list[asyncio.Future[None]] = []
        self._ending = False
        self._idle = asyncio.Event()

    def accept(self, message: Message) -> None:
        offset = message.offset() or 0
        if not self.ledger.take(offset):
            self._tell()
            return
        key: Key = message.key() if self._station.config.ordered else offset
        if key in self._lines:
            self._lines[key].append(message)
            return
        self._lines[key] = deque([message])
        task = asyncio.create_task(self._serve(key))
        self.tasks.add(task)
        task.add_done_callback(self._served)

    async def end(self, limit_s: float) -> None:
        """Begin nothing more, and let what runs end in this time."""
        self._ending = True
        if self.running:
            self._idle.clear()
            try:
                async with asyncio.timeout(limit_s):
                    await self._idle.wait()
            except TimeoutError:
                pass  # it will be tried again, by others
        self.cancel()

    def cancel(self) -> None:
        self._ending = True
        for task in self.tasks:
            task.cancel()

    def noting(self) -> list[asyncio.Future[None]]:
        """A commit begins: those who wait for it."""
        self.changed = False
        waiting, self._unnoted = self._unnoted, []
        return waiting

    def not_noted(self, waiting: list[asyncio.Future[None]]) -> None:
        self._unnoted = waiting + self._unnoted
        self.changed = True

    async def _serve(self, key: Key) -> None:
        line = self._lines[key]
        while line and await self._finish(line[0]):
            line.popleft()
        del self._lines[key]

    async def _finish(self, message: Message) -> bool:
        """Try until it is done or dead; False when somebody else has to."""
        offset = message.offset() or 0
        suspect = self.ledger.tries(offset) > 0  # begun by one who did not say how it ended
        while True:
            await self._station.open.wait()
            async with AsyncExitStack() as stack:
                if suspect:
                    await stack.enter_async_context(self._suspects)
                await stack.enter_async_context(self._slots)
                if self._ending:
                    return False
                attempt = await self._begin(offset)
                result = await self._work(message, attempt)
            if result != "retry":
                self.ledger.end(offset)
                self._tell()
                return True
            suspect = False
            await self._station.clock.sleep(self._station.pause_s(attempt))

    async def _begin(self, offset: int) -> int:
        """Count the attempt where it outlives us."""
        attempt = self.ledger.begin(offset)
        noted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unnoted.append(noted)
        self._tell()
        try:
            await noted
        except asyncio.CancelledError:
            self.ledger.undo(offset)
            raise
        return attempt

    async def _work(self, message: Message, attempt: int) -> str:
        headers = _headers(message)
        delivery, broken = self._station.decode(headers, message.value() or b"", attempt)
        self.running += 1
        try:
            return (await self._station.run(delivery, broken)).result
        finally:
            self.running -= 1
            if not self.running:
                self._idle.set()
                self._note(None)

    def _served(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self._note(None if task.cancelled() else task.exception())

    def _tell(self) -> None:
        self.changed = True
        self._note(None)


def _headers(message: Message) -> dict[str, str]:
    pairs = cast("list[tuple[str, bytes]]", message.headers() or [])  # as the client reads them
    return {name: (value or b"").decode(errors="replace") for name, value in pairs}
