"""Source side of the edge: receives messages in place of the strategies and stores them in NATS.

open ── full, or 2 ms old ──▶ sealed ── sent ──▶ stored ── confirmed by the sink ──▶ removed
                                ▲         │
                                └─────────┘ rejected, lost, or server gone: read where the
                                            stream ends, and resend from there
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from qts.domain import OperationError
from qts.router.distributed.edge import STREAMS, EdgeConfig, NatsLink, encode, streams_of
from qts.router.handlers import MESSAGE, Messages

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.js.api import StreamState

_LINGER_S = 0.002
_CHECK_INTERVAL_S = 0.25  # of the stream's state in normal operation
_FAST_CHECK_INTERVAL_S = 0.005
_REPLY_TIMEOUT_S = 2.0


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
    """Batches of a sender by state: open, sealed, stored, confirmed. Plain state, no I/O.

    The sender guards it with a lock. Batches are numbered from 1; each state is the number of the
    last batch that has reached it, so confirmed <= stored <= sealed. A batch is kept until it is
    confirmed: a server that was killed may restart without some that it had stored.
    """

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


class EdgeSender:
    """Sends the messages of a source; `batch(sender.send)` is the handler of its strategies."""

    def __init__(self, edge: EdgeConfig) -> None:
        self.edge = edge
        self.failure: str | None = None
        self._link = NatsLink(edge, "source")
        self._window = SendWindow(edge.batch, edge.held)
        self._change = threading.Condition()  # guards the window and the failure
        self._wake = asyncio.Event()
        self._sent = 0
        self._generation = 0  # incremented at every resend
        self._out_of_step = False
        self._rejection = ""
        self._reconnects = 0
        self._progress_at = self._checked_at = self._replied_at = 0.0

    def open(self) -> None:
        """Connect and create the stream; raise RefusedError if this run exists."""
        self._link.open()
        try:
            self._link.run(self._link.create_stream())
        except BaseException:
            self._link.close()
            raise
        self._progress_at = time.monotonic()
        self._job = self._link.spawn(self._run())

    def send(self, messages: Messages) -> None:
        """Queue messages, waiting while too many are in flight; raise OperationError on failure."""
        with self._change:
            while self.failure is None and self._window.unstored >= 2 * self.edge.in_flight:
                self._change.wait(0.1)
            if self.failure is not None:
                raise OperationError(self.failure)
            changed = self._window.add(messages)
        if changed:
            self._link.call_soon(self._wake.set)

    def finish(self) -> None:
        """End the run with a last batch that holds the totals of every stream."""
        with self._change:
            if self.failure is None and not self._window.ended:
                self._window.finish()
        self._link.call_soon(self._wake.set)

    def wait(self, timeout: float) -> bool:
        """Return True once the sink has confirmed everything, or when that has failed."""
        with self._change:
            return self._change.wait_for(
                lambda: self._window.complete or self.failure is not None, timeout
            )

    def fail(self, reason: str) -> None:
        """Fail the run unless it is complete or has failed."""
        with self._change:
            if self.failure is None and not self._window.complete:
                self.failure = reason
            self._change.notify_all()

    def close(self) -> None:
        """Disconnect; remove the stream if all of it was confirmed, else leave it for a sink."""
        self.fail("the sender was closed")
        self._link.call_soon(self._wake.set)
        self._job.result()
        if self._window.complete:
            self._link.run(self._link.remove_stream())
        self._link.close()

    @property
    def counts(self) -> DeliveryCounts:
        with self._change:
            return self._window.counts()

    @property
    def stored(self) -> int:
        """Number of the last batch that the server has stored."""
        return self._window.stored

    # ---- on the event loop of the link ----

    async def _run(self) -> None:
        try:
            inbox = self._link.client.new_inbox()
            await self._link.client.subscribe(f"{inbox}.*.*", cb=self._on_reply)
            while self.failure is None and not self._window.complete:
                await self._pause()
                if self._check_is_due():
                    await self._check_stream()
                await self._send_due(inbox)
                self._check_progress()
        except OperationError as error:
            self.fail(str(error))
        except Exception as error:  # noqa: BLE001 - send() and wait() must return
            self.fail(f"the sender failed: {type(error).__name__}: {error}")

    async def _pause(self) -> None:
        window = self._window
        timeout_s = _LINGER_S if window.is_open else 10 * _FAST_CHECK_INTERVAL_S
        try:
            async with asyncio.timeout(_FAST_CHECK_INTERVAL_S if self._urgent else timeout_s):
                await self._wake.wait()
        except TimeoutError:
            with self._change:
                if not window.unstored:  # while others are in flight it may still fill up
                    window.seal()
        self._wake.clear()

    @property
    def _urgent(self) -> bool:
        return self._out_of_step or self._window.waits_for_sink

    def _check_is_due(self) -> bool:
        now = time.monotonic()
        if self._link.reconnects != self._reconnects:
            self._reconnects, self._out_of_step = self._link.reconnects, True
        pending = self._sent > self._window.stored
        if pending and now - max(self._replied_at, self._progress_at) > _REPLY_TIMEOUT_S:
            self._out_of_step = True
        interval_s = _FAST_CHECK_INTERVAL_S if self._urgent else _CHECK_INTERVAL_S
        return now - self._checked_at >= interval_s

    async def _check_stream(self) -> None:
        state = await self._link.state()
        self._checked_at = time.monotonic()
        if state is None:
            return
        if state.last_seq < self._window.confirmed:
            # A killed server may lose the end of an emptied stream.
            await self._link.move_end(self._window.confirmed)
        else:
            with self._change:
                self._compare(state)

    def _compare(self, state: StreamState) -> None:
        window = self._window
        if state.last_seq > window.sealed:
            raise OperationError(f"another process writes to stream {self.edge.stream}")
        confirmed = state.first_seq - 1 if state.messages else state.last_seq
        changed = window.mark_confirmed(confirmed)
        if self._out_of_step:
            changed = state.last_seq > window.stored or changed
            window.mark_end(state.last_seq)
            self._sent, self._generation = state.last_seq, self._generation + 1
            self._replied_at = time.monotonic()
            self._out_of_step = False
        if changed:
            self._on_progress()

    async def _send_due(self, inbox: str) -> None:
        import nats.errors

        while not self._out_of_step and self._link.connected:
            with self._change:
                due = self._window.after(self._sent)
                busy = self._sent - self._window.stored >= self.edge.in_flight
            if due is None or busy:
                return
            try:
                await self._link.client.publish(
                    self.edge.subject,
                    due.data,
                    reply=f"{inbox}.{self._generation}.{due.number}",
                    headers={
                        "Nats-Msg-Id": self.edge.message_id(due.number),
                        "Nats-Expected-Last-Sequence": str(due.number - 1),
                    },
                )
            except nats.errors.Error as error:
                self._rejection, self._out_of_step = str(error), True
                return
            self._sent = due.number

    async def _on_reply(self, message: Msg) -> None:
        generation, number = message.subject.rsplit(".", 2)[1:]
        if int(generation) != self._generation:
            return  # the batch was resent
        self._replied_at = time.monotonic()
        reply = json.loads(message.data) if message.data else {"error": {"description": "no reply"}}
        if "error" in reply:
            self._rejection = reply["error"].get("description", "rejected")
            self._out_of_step = True
        else:
            with self._change:
                if self._window.mark_stored(int(number)):
                    self._on_progress()
        self._wake.set()

    def _on_progress(self) -> None:
        self._progress_at, self._rejection = time.monotonic(), ""
        self._change.notify_all()

    def _check_progress(self) -> None:
        window, now = self._window, time.monotonic()
        if window.idle:
            self._progress_at = now
        since = self._progress_at
        if window.waits_for_sink and self._link.connected:
            since = max(since, self._link.peer_at)
        if now - since <= self.edge.timeout_s:
            return
        span = f"for {self.edge.timeout_s:g} s"
        if not self._link.connected:
            raise OperationError(f"{self.edge.server} has been unreachable {span}")
        if window.waits_for_sink:
            raise OperationError(
                f"no sink of run {self.edge.run} was active {span};"
                f" batches {window.confirmed + 1} to {window.stored} wait in stream"
                f" {self.edge.stream}"
            )
        reason = f": {self._rejection}" if self._rejection else ""
        raise OperationError(f"{self.edge.server} has stored nothing {span}{reason}")
