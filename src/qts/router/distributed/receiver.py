"""Sink side of the edge: feeds a router, and confirms what its strategies have handled.

A sink joins by making itself the only consumer of the stream, starting at the first batch that is
not confirmed. Every irregularity (a batch too early, a reconnection, a consumer that vanished) has
the same remedy: join again, and skip what was received.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from qts.domain import OperationError, QtsError, RefusedError
from qts.router.distributed.edge import TYPES, Batch, EdgeConfig, NatsLink, decode, streams_of
from qts.router.handlers import Messages
from qts.router.router import Router

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

_PUSH_TIMEOUT_S = 0.2
_IDLE_S = 0.1
_CONFIRM_AFTER_S = 0.002
_POLL_INTERVAL_S = 0.0005
_CHECK_INTERVAL_S = 1.0
_ACK_WAIT_S = 60.0
_REPLY_TIMEOUT_S = 2.0

Positions = Mapping[tuple[int, int], int]  # (producer, type) to the last sequence number handled

Rows = npt.NDArray[np.intp]


class _Stream(msgspec.Struct):
    earlier: int  # messages before the first batch that this sink received of it
    due: int  # number of the next message
    position: int  # the last sequence number handled before this sink; -1: none
    base: int | None = None  # number of the first admitted message
    admitted: int = 0
    skipped: int = 0  # handled before, according to the position
    missing: int = 0


class DeliveryTracker:
    """Counts of each message stream, i.e. the messages of one producer and type.

    What a sink has received: no duplicates, and a count of missing messages.

    Batches are admitted once each, in order. `positions` holds the last sequence number that the
    strategies of an earlier sink have handled, from their own record.
    """

    def __init__(self, ordered: Collection[int], positions: Positions | None = None) -> None:
        self._positions: dict[int, int] = {}
        for (producer, kind), sequence in (positions or {}).items():
            if kind not in ordered:
                raise RefusedError(
                    f"a position of type {kind} means nothing: its order is not promised;"
                    f" expected types {', '.join(map(str, sorted(ordered)))}"
                )
            self._positions[producer * TYPES + kind] = sequence
        self._streams: dict[int, _Stream] = {}

    def admit(self, batch: Batch) -> Messages:
        """Return the messages that are new, numbered from 0 in each stream of this sink."""
        messages = batch.messages
        streams = streams_of(messages)
        keep = np.ones(len(messages), np.bool_)
        for key, before in batch.before.items():
            stream = self._stream(key, before)
            rows = np.flatnonzero(streams == key)
            stream.missing += max(0, before - stream.due)
            stream.due = before + len(rows)
            fresh = self._fresh(stream, messages, rows)
            keep[rows] = False
            keep[fresh] = True
            if len(fresh) and stream.base is None:
                stream.base = before + len(rows) - len(fresh)
            messages["stream_number"][fresh] -= np.uint16((stream.base or 0) % 65_536)
            stream.admitted += len(fresh)
            stream.skipped += len(rows) - len(fresh)
        return messages if keep.all() else messages[keep]

    def missing(self, totals: Mapping[int, int], from_start: bool) -> Iterator[tuple[str, int]]:
        """Yield streams that lack messages, with their number.

        `from_start`: this sink began at the first batch, so that a stream without a batch is
        missing instead of finished by an earlier sink.
        """
        for key, total in sorted(totals.items()):
            stream = self._streams.get(key)
            if stream is None:
                count = total if from_start else 0
            else:
                count = stream.missing + max(0, total - stream.due)
            if count:
                yield f"producer {key // TYPES} type {key % TYPES}", count

    def earlier(self, totals: Mapping[int, int], from_start: bool) -> int:
        """Return the number of messages that an earlier sink confirmed."""
        finished = 0 if from_start else sum(totals[key] for key in totals.keys() - self._streams)
        return finished + sum(stream.earlier for stream in self._streams.values())

    @property
    def admitted(self) -> int:
        return sum(stream.admitted for stream in self._streams.values())

    @property
    def skipped(self) -> int:
        """Messages that an earlier sink had handled, according to the positions."""
        return sum(stream.skipped for stream in self._streams.values())

    def _stream(self, key: int, before: int) -> _Stream:
        if key not in self._streams:
            position = self._positions.get(key, -1)
            self._streams[key] = _Stream(earlier=before, due=before, position=position)
        return self._streams[key]

    @staticmethod
    def _fresh(stream: _Stream, messages: Messages, rows: Rows) -> Rows:
        """Return the rows without the handled ones at the beginning of a stream.

        A later row with a low sequence number stays: it is out of order, which the router reports.
        """
        if stream.base is not None or not len(rows):
            return rows
        new = np.flatnonzero(messages["sequence_number"][rows] > stream.position)
        return rows[new[0] :] if len(new) else rows[:0]


class EdgeReceiver:
    """Feeds a live router that keeps numbers, until the source ends the run."""

    def __init__(self, edge: EdgeConfig, router: Router, tracker: DeliveryTracker) -> None:
        self.edge = edge
        self.tracker = tracker
        self.failure: str | None = None
        self.totals: dict[int, int] | None = None  # of every stream, once the source has ended
        self.first = 0  # the number of the first batch of this sink; 0: none yet
        self.redelivered = 0  # messages that an earlier sink had received and not confirmed
        self.pushed = 0
        self.joins = 0
        self.ended = threading.Event()
        self._link = NatsLink(edge, "sink")
        self._router = router
        self._consumer = f"sink-{secrets.token_hex(6)}"
        self._due = 0
        self._delivered_to = 0  # the last batch that an earlier sink had received
        self._pending: dict[int, str] = {}  # number to the subject of its confirmation
        self._arrived: asyncio.Queue[Msg] = asyncio.Queue()
        self._subscription: Subscription | None = None
        self._reconnects = 0
        self._out_of_step = False
        self._stop = self._abort = False
        self._received_at = self._checked_at = 0.0

    def open(self) -> None:
        self._link.open()

    def start(self) -> None:
        """Start receiving; the router must be running."""
        self._received_at = time.monotonic()
        self._job = self._link.spawn(self._run())

    def stop(self) -> None:
        """Receive no more; what was received is still delivered and confirmed."""
        self._stop = True

    def abort(self) -> None:
        self._stop = self._abort = True

    def close(self) -> None:
        self.abort()
        self._job.result()
        self._link.close()

    # ---- on the event loop of the link ----

    async def _run(self) -> None:
        try:
            await self._join()
            while self.totals is None and not self._stop:
                await self._step()
            await self._drain()
        except QtsError as error:
            self.failure = str(error)
        except Exception as error:  # noqa: BLE001 - wait() must return
            self.failure = f"the receiver failed: {type(error).__name__}: {error}"
        finally:
            self.ended.set()

    async def _step(self) -> None:
        if self._out_of_step or self._link.reconnects != self._reconnects:
            await self._join()
        message = await self._next(_CONFIRM_AFTER_S if self._pending else _IDLE_S)
        if message is not None:
            await self._receive(message)
        if len(self._pending) >= self.edge.unconfirmed // 2:
            await self._wait_delivered()
        if self._router.delivered == self.pushed:
            await self._confirm()
        if time.monotonic() - self._checked_at > _CHECK_INTERVAL_S:
            await self._check()

    async def _next(self, seconds: float) -> Msg | None:
        try:
            async with asyncio.timeout(seconds):
                return await self._arrived.get()
        except TimeoutError:
            return None

    async def _receive(self, message: Msg) -> None:
        self._received_at = time.monotonic()
        batch = decode(message.data)
        if batch.number > self._due:
            self._out_of_step = True
        elif batch.number == self._due:
            self._due += 1
            self.first = self.first or batch.number
            self._pending[batch.number] = message.reply
            await asyncio.to_thread(self._push, self._admit(batch))
            if batch.last:
                self.totals = batch.before
        elif batch.number in self._pending:
            self._pending[batch.number] = message.reply
        else:
            await self._link.client.publish(message.reply, b"+ACK")  # the first ACK was lost

    def _admit(self, batch: Batch) -> Messages:
        if batch.last:
            return batch.messages
        if batch.number <= self._delivered_to:
            self.redelivered += len(batch.messages)
        return self.tracker.admit(batch)

    def _push(self, messages: Messages) -> None:
        done = 0
        while done < len(messages):
            accepted = self._router.push_many(messages[done:], timeout=_PUSH_TIMEOUT_S)
            done, self.pushed = done + accepted, self.pushed + accepted
            if done < len(messages) and (self._abort or self._router.wait(0)):
                raise OperationError("the router accepted no more messages")

    async def _wait_delivered(self) -> None:
        while self._router.delivered != self.pushed:
            if self._abort or self._router.wait(0):
                raise OperationError("the router ended before it had delivered all messages")
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def _confirm(self) -> None:
        for reply in self._pending.values():
            await self._link.client.publish(reply, b"+ACK")
        self._pending.clear()

    async def _drain(self) -> None:
        """Deliver what was received, then confirm it and wait for the server's reply."""
        import nats.errors

        self._router.stop()
        while not await asyncio.to_thread(self._router.wait, _PUSH_TIMEOUT_S):
            if self._abort:
                return
        deadline = time.monotonic() + self.edge.timeout_s
        while self._router.delivered == self.pushed and self._pending:
            number, reply = next(iter(self._pending.items()))
            try:
                await self._link.client.request(reply, b"+ACK", timeout=_REPLY_TIMEOUT_S)
                del self._pending[number]
            except (nats.errors.Error, TimeoutError):
                if time.monotonic() > deadline:
                    raise OperationError(
                        f"{self.edge.server} did not accept the confirmation"
                    ) from None
                if not await self._rejoin():
                    return  # the source removes the stream once all of it is confirmed

    async def _rejoin(self) -> bool:
        """Join again for new confirmation subjects; return False if the stream is gone."""
        try:
            await self._join()
        except OperationError:
            if self.totals is None:
                raise
            return False
        while (message := await self._next(_IDLE_S)) is not None:
            await self._receive(message)
        return True

    async def _check(self) -> None:
        """Check that the router, the source and our consumer still exist."""
        from nats.js.errors import NotFoundError

        self._checked_at = now = time.monotonic()
        if self._router.wait(0):
            raise OperationError("the router ended")
        if now - max(self._received_at, self._link.peer_at) > self.edge.timeout_s:
            raise OperationError(self._silence())
        if self._link.connected and now - self._received_at > _CHECK_INTERVAL_S:
            try:
                await self._link.jetstream.consumer_info(self.edge.stream, self._consumer)
            except NotFoundError:
                self._out_of_step = True
            except TimeoutError:
                pass  # the timeout above ends this

    def _silence(self) -> str:
        span = f"for {self.edge.timeout_s:g} s"
        if not self._link.connected:
            return f"{self.edge.server} has been unreachable {span}"
        if not self.joins:
            return f"no source of run {self.edge.run} appeared at {self.edge.server} {span}"
        return (
            f"the source of run {self.edge.run} was silent {span} after batch {self._due - 1}"
            " and has not ended the run"
        )

    # ---- joining ----

    async def _join(self) -> None:
        import nats.errors

        while True:
            self._reconnects, self._out_of_step = self._link.reconnects, False
            try:
                if await self._remove_other_consumers() and await self._create_consumer():
                    return
            except (nats.errors.Error, TimeoutError, OSError):
                pass  # retried until the timeout below
            if self._stop:
                return
            if time.monotonic() - max(self._received_at, self._link.peer_at) > self.edge.timeout_s:
                raise OperationError(self._silence())
            await asyncio.sleep(_IDLE_S)

    async def _remove_other_consumers(self) -> bool:
        """Delete the consumers of earlier sinks; return False if there is no stream yet."""
        from nats.js.errors import NotFoundError

        try:
            others = await self._link.jetstream.consumers_info(self.edge.stream)
        except NotFoundError:
            if self.joins:
                raise OperationError(
                    f"stream {self.edge.stream} is gone from {self.edge.server}"
                ) from None
            return False
        for other in others:
            if other.name != self._consumer:
                if self.joins:
                    raise OperationError(f"another sink of run {self.edge.run} has taken over")
                if other.delivered is not None:
                    self._delivered_to = max(self._delivered_to, other.delivered.stream_seq)
            await self._link.jetstream.delete_consumer(self.edge.stream, other.name)
        return True

    async def _create_consumer(self) -> bool:
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        client = self._link.client
        if self._subscription is not None:
            await self._subscription.unsubscribe()
        arrived: asyncio.Queue[Msg] = asyncio.Queue()
        self._arrived = arrived

        async def arrive(message: Msg) -> None:
            arrived.put_nowait(message)

        inbox = client.new_inbox()
        self._subscription = await client.subscribe(inbox, cb=arrive)
        await self._link.jetstream.add_consumer(
            self.edge.stream,
            ConsumerConfig(
                durable_name=self._consumer,
                deliver_subject=inbox,
                deliver_policy=DeliverPolicy.ALL,
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=_ACK_WAIT_S,
                max_ack_pending=self.edge.unconfirmed,
            ),
        )
        state = await self._link.state()
        if state is None:
            return False
        first = state.first_seq if state.messages else state.last_seq + 1
        self.joins += 1
        # The tracker counts batches that are gone from the stream as missing.
        self._due = max(self._due, first)
        return True
