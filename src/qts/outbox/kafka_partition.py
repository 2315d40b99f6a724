"""Events of one Kafka partition: their queues in flight, and the progress that is committed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, cast

import msgspec

from qts import telemetry
from qts.outbox.handling import DeliveryRunner, account_of, is_set_within

WINDOW = 256  # events from first open to next: their metadata stays far below Kafka's 4,096 bytes

log = telemetry.logger("outbox")


class _Metadata(msgspec.Struct):
    """Offsets relative to the first open one."""

    ended: list[int] = []
    tries: dict[int, int] = {}


_decoder = msgspec.json.Decoder(_Metadata)


class OffsetTracker:
    """Finished and open offsets, continued from a commit; None: from the first event received.

        offset      0   1   2   3   4   5   6   7
                    done    ▲   done    │       ▲
                            │ first open                  next: not received yet
                            committed, with the metadata {"ended": [1], "tries": {"0": 2, "2": 1}}

    Kafka stores one offset per partition: all events before it are done. Events finish out of
    order, because one aggregate waits for a retry while others continue. So the metadata of the
    commit holds which events after the first open one have finished, and how many attempts of the
    others started. The next consumer of the partition continues from there: finished events are not
    repeated, and the attempts of an event that crashes its consumer are counted.
    """

    def __init__(self, first_open: int | None = None, metadata: str = "") -> None:
        self._next = first_open
        self._open: dict[int, None] = {}  # received and not finished, in order
        stored = _decode(metadata)
        start = first_open or 0
        self._ended = {start + distance for distance in stored.ended}
        self._attempts = {start + distance: tries for distance, tries in stored.tries.items()}

    @property
    def first_open(self) -> int:
        """First offset that is not finished."""
        return next(iter(self._open), self._next or 0)

    @property
    def in_flight(self) -> int:
        return len(self._open)

    @property
    def is_full(self) -> bool:
        return len(self._open) + len(self._ended) >= WINDOW

    def add(self, offset: int) -> bool:
        """Add a received event; return False if another consumer has finished it."""
        self._next = offset + 1
        if offset in self._ended:
            self._prune()
            return False
        self._open[offset] = None
        return True

    def attempts(self, offset: int) -> int:
        return self._attempts.get(offset, 0)

    def start_attempt(self, offset: int) -> int:
        """Return the number of the attempt that starts."""
        self._attempts[offset] = tries = self._attempts.get(offset, 0) + 1
        return tries

    def undo_attempt(self, offset: int) -> None:
        """Uncount an attempt that did not start."""
        self._attempts[offset] -= 1

    def finish(self, offset: int) -> None:
        del self._open[offset]
        self._ended.add(offset)
        self._attempts.pop(offset, None)
        self._prune()

    def metadata(self) -> str:
        first_open = self.first_open
        metadata = _Metadata(
            sorted(offset - first_open for offset in self._ended),
            {offset - first_open: tries for offset, tries in self._attempts.items() if tries},
        )
        return msgspec.json.encode(metadata).decode()

    def _prune(self) -> None:
        first_open = self.first_open
        self._ended = {offset for offset in self._ended if offset >= first_open}
        self._attempts = {offset: n for offset, n in self._attempts.items() if offset >= first_open}


def _decode(metadata: str) -> _Metadata:
    try:
        return _decoder.decode(metadata) if metadata else _Metadata()
    except msgspec.MsgspecError:
        log.warning("foreign commit metadata ignored", metadata=metadata[:100])
        return _Metadata()


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
            await is_set_within(self._idle, timeout_s)  # if not, the next consumer retries it
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
