"""Batches of a sender by state: open, sealed, stored, confirmed. Plain state, no I/O.

The sender guards it with a lock. Batches are numbered from 1; each state is the number of the last
batch that has reached it, so confirmed <= stored <= sealed. A batch is kept until it is confirmed:
a server that was killed may restart without some that it had stored.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import msgspec
import numpy as np

from qts.router.distributed.edge import STREAMS, encode, streams_of
from qts.router.handlers import MESSAGE, Messages


class DeliveryCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Number of messages given to a sender, by state."""

    handed: int
    confirmed: int
    in_stream: int
    unstored: int


class SealedBatch(NamedTuple):
    number: int
    messages: int
    data: bytes


class SendWindow:
    def __init__(self, batch: int, held: int) -> None:
        self.sealed = self.stored = self.confirmed = 0
        self.ended = False
        self._batch = batch
        self._held = held
        self._open: list[bytes] = []
        self._open_count = 0
        self._counts = np.zeros(STREAMS, np.int64)  # messages sealed of every stream
        self._kept: deque[SealedBatch] = deque()

    @property
    def unstored(self) -> int:
        return self.sealed - self.stored

    @property
    def is_open(self) -> bool:
        """Whether messages wait for their batch to be sealed."""
        return bool(self._open)

    @property
    def complete(self) -> bool:
        return self.ended and self.confirmed == self.sealed

    @property
    def waits_for_sink(self) -> bool:
        """Whether only a confirmation allows progress."""
        full = self.stored - self.confirmed >= self._held
        idle = self.stored == self.sealed and not self._open
        return bool(self._kept) and (full or idle)

    @property
    def idle(self) -> bool:
        return not self._kept

    def add(self, messages: Messages) -> bool:
        """Add messages; return True when a batch was started or is full."""
        begun = not self._open
        if self._open_count + len(messages) > self._batch:
            self.seal()
        self._open.append(messages.tobytes())
        self._open_count += len(messages)
        full = self._open_count >= self._batch
        if full:
            self.seal()
        return begun or full

    def seal(self) -> None:
        if not self._open:
            return
        body = b"".join(self._open)
        fresh = np.bincount(streams_of(np.frombuffer(body, MESSAGE)), minlength=STREAMS)
        before = {int(key): int(self._counts[key]) for key in np.flatnonzero(fresh)}
        self._counts += fresh
        self._queue(encode(self.sealed + 1, before, body), self._open_count)
        self._open, self._open_count = [], 0

    def finish(self) -> None:
        """Seal the last batch: no messages, but the totals of every stream."""
        self.seal()
        totals = {int(key): int(self._counts[key]) for key in np.flatnonzero(self._counts)}
        self._queue(encode(self.sealed + 1, totals, b"", last=True), 0)
        self.ended = True

    def after(self, number: int) -> SealedBatch | None:
        """Return the batch after this one, if it is sealed and the stream has capacity for it."""
        if number - self.confirmed >= self._held:
            return None
        index = number - self.confirmed
        return self._kept[index] if 0 <= index < len(self._kept) else None

    def mark_stored(self, number: int) -> bool:
        """Record that a batch is stored; return whether that changed the state."""
        if number <= self.stored:
            return False
        self.stored = number
        return True

    def mark_end(self, number: int) -> None:
        """Record where the stream ends, which may be before what it had stored."""
        self.stored = max(number, self.confirmed)

    def mark_confirmed(self, number: int) -> bool:
        if number <= self.confirmed:
            return False
        self.confirmed = number
        self.stored = max(self.stored, number)
        while self._kept and self._kept[0].number <= number:
            self._kept.popleft()
        return True

    def counts(self) -> DeliveryCounts:
        in_stream = sum(one.messages for one in self._kept if one.number <= self.stored)
        waiting = sum(one.messages for one in self._kept)
        return DeliveryCounts(
            handed=int(self._counts.sum()) + self._open_count,
            confirmed=int(self._counts.sum()) - waiting,
            in_stream=in_stream,
            unstored=waiting - in_stream + self._open_count,
        )

    def _queue(self, data: bytes, count: int) -> None:
        self.sealed += 1
        self._kept.append(SealedBatch(self.sealed, count, data))
