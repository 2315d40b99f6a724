"""The end of the edge at the sink: feeds a router, and confirms what its strategies have had.

A sink joins by making itself the stream's only consumer, beginning at the first batch that nobody
confirmed. Everything odd (a batch too early, a reconnection, a consumer that vanished) has one
cure: join again, and leave out what was taken.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from typing import TYPE_CHECKING

from qts.domain import OperationError, QtsError
from qts.router.distributed.delivery_tracker import DeliveryTracker
from qts.router.distributed.edge import Batch, EdgeConfig, decode
from qts.router.distributed.nats_link import NatsLink
from qts.router.handlers import Messages
from qts.router.router import Router

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

_PUSH_S = 0.2
_IDLE_S = 0.1
_SOON_S = 0.002
_POLL_S = 0.0005
_CHECK_S = 1.0
_ACK_WAIT_S = 60.0
_ANSWER_S = 2.0


class EdgeReceiver:
    """Feeds a live router that keeps numbers, until the source ends the run."""

    def __init__(self, edge: EdgeConfig, router: Router, ledger: DeliveryTracker) -> None:
        self.edge = edge
        self.ledger = ledger
        self.failure: str | None = None
        self.totals: dict[int, int] | None = None  # of every stream, once the source has ended
        self.first = 0  # the number of the first batch of this sink; 0: none came
        self.handed_before = 0  # messages that an earlier sink had got and not confirmed
        self.pushed = 0
        self.joins = 0
        self.ended = threading.Event()
        self._link = NatsLink(edge, "sink")
        self._router = router
        self._consumer = f"sink-{secrets.token_hex(6)}"
        self._due = 0
        self._handed_to = 0  # the last batch that an earlier sink had got
        self._pending: dict[int, str] = {}  # number to where its confirmation goes
        self._arrived: asyncio.Queue[Msg] = asyncio.Queue()
        self._subscription: Subscription | None = None
        self._reconnects = 0
        self._out_of_step = False
        self._stop = self._abort = False
        self._heard_at = self._checked_at = 0.0

    def open(self) -> None:
        self._link.open()

    def start(self) -> None:
        """The router runs by now."""
        self._heard_at = time.monotonic()
        self._job = self._link.spawn(self._work())

    def stop(self) -> None:
        """Take no more; what was taken is still delivered and confirmed."""
        self._stop = True

    def abort(self) -> None:
        self._stop = self._abort = True

    def close(self) -> None:
        self.abort()
        self._job.result()
        self._link.close()

    # ---- on the loop of the link ----

    async def _work(self) -> None:
        try:
            await self._join()
            while self.totals is None and not self._stop:
                await self._step()
            await self._drain()
        except QtsError as error:
            self.failure = str(error)
        except Exception as error:  # noqa: BLE001 - else whoever waits for the end would wait on
            self.failure = f"the inlet broke: {type(error).__name__}: {error}"
        finally:
            self.ended.set()

    async def _step(self) -> None:
        if self._out_of_step or self._link.reconnects != self._reconnects:
            await self._join()
        message = await self._next(_SOON_S if self._pending else _IDLE_S)
        if message is not None:
            await self._take(message)
        if len(self._pending) >= self.edge.unconfirmed // 2:
            await self._all_delivered()
        if self._router.delivered == self.pushed:
            await self._confirm()
        if time.monotonic() - self._checked_at > _CHECK_S:
            await self._check()

    async def _next(self, seconds: float) -> Msg | None:
        try:
            async with asyncio.timeout(seconds):
                return await self._arrived.get()
        except TimeoutError:
            return None

    async def _take(self, message: Msg) -> None:
        self._heard_at = time.monotonic()
        batch = decode(message.data)
        if batch.number > self._due:
            self._out_of_step = True
        elif batch.number == self._due:
            self._due += 1
            self.first = self.first or batch.number
            self._pending[batch.number] = message.reply
            await asyncio.to_thread(self._push, self._sorted_out(batch))
            if batch.last:
                self.totals = batch.before
        elif batch.number in self._pending:
            self._pending[batch.number] = message.reply
        else:
            await self._link.client.publish(message.reply, b"+ACK")  # the first one was lost

    def _sorted_out(self, batch: Batch) -> Messages:
        if batch.last:
            return batch.messages
        if batch.number <= self._handed_to:
            self.handed_before += len(batch.messages)
        return self.ledger.admit(batch)

    def _push(self, messages: Messages) -> None:
        done = 0
        while done < len(messages):
            taken = self._router.push_many(messages[done:], timeout=_PUSH_S)
            done, self.pushed = done + taken, self.pushed + taken
            if done < len(messages) and (self._abort or self._router.wait(0)):
                raise OperationError("the router took no more")

    async def _all_delivered(self) -> None:
        while self._router.delivered != self.pushed:
            if self._abort or self._router.wait(0):
                raise OperationError("the router ended before it had delivered all")
            await asyncio.sleep(_POLL_S)

    async def _confirm(self) -> None:
        for reply in self._pending.values():
            await self._link.client.publish(reply, b"+ACK")
        self._pending.clear()

    async def _drain(self) -> None:
        """Deliver what was taken, then confirm it and see that the server knows."""
        import nats.errors

        self._router.stop()
        while not await asyncio.to_thread(self._router.wait, _PUSH_S):
            if self._abort:
                return
        deadline = time.monotonic() + self.edge.patience_s
        while self._router.delivered == self.pushed and self._pending:
            number, reply = next(iter(self._pending.items()))
            try:
                await self._link.client.request(reply, b"+ACK", timeout=_ANSWER_S)
                del self._pending[number]
            except (nats.errors.Error, TimeoutError):
                if time.monotonic() > deadline:
                    raise OperationError(
                        f"{self.edge.place} did not take the confirmation"
                    ) from None
                if not await self._is_there_again():
                    return  # the source removes the stream once all of it is confirmed

    async def _is_there_again(self) -> bool:
        """Joined again, with new addresses for what is not confirmed; False: the stream is gone."""
        try:
            await self._join()
        except OperationError:
            if self.totals is None:
                raise
            return False
        while (message := await self._next(_IDLE_S)) is not None:
            await self._take(message)
        return True

    async def _check(self) -> None:
        """Whether the router, the source, and our place at the stream are still there."""
        from nats.js.errors import NotFoundError

        self._checked_at = now = time.monotonic()
        if self._router.wait(0):
            raise OperationError("the router ended")
        if now - max(self._heard_at, self._link.peer_at) > self.edge.patience_s:
            raise OperationError(self._silence())
        if self._link.connected and now - self._heard_at > _CHECK_S:
            try:
                await self._link.jetstream.consumer_info(self.edge.stream, self._consumer)
            except NotFoundError:
                self._out_of_step = True
            except TimeoutError:
                pass  # the patience above ends this

    def _silence(self) -> str:
        span = f"for {self.edge.patience_s:g} s"
        if not self._link.connected:
            return f"{self.edge.place} has been gone {span}"
        if not self.joins:
            return f"no source of run {self.edge.run} appeared at {self.edge.place} {span}"
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
                if await self._stream_is_there() and await self._be_the_consumer():
                    return
            except (nats.errors.Error, TimeoutError, OSError):
                pass  # passing or not: the patience below decides
            if self._stop:
                return
            if time.monotonic() - max(self._heard_at, self._link.peer_at) > self.edge.patience_s:
                raise OperationError(self._silence())
            await asyncio.sleep(_IDLE_S)

    async def _stream_is_there(self) -> bool:
        from nats.js.errors import NotFoundError

        try:
            others = await self._link.jetstream.consumers_info(self.edge.stream)
        except NotFoundError:
            if self.joins:
                raise OperationError(
                    f"stream {self.edge.stream} is gone from {self.edge.place}"
                ) from None
            return False
        for other in others:
            if other.name != self._consumer:
                if self.joins:
                    raise OperationError(f"another sink of run {self.edge.run} has taken over")
                if other.delivered is not None:
                    self._handed_to = max(self._handed_to, other.delivered.stream_seq)
            await self._link.jetstream.delete_consumer(self.edge.stream, other.name)
        return True

    async def _be_the_consumer(self) -> bool:
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
        # Batches that nobody will get any more are missed by the ledger, which goes on behind them.
        self._due = max(self._due, first)
        return True
