"""The end of the edge at the source: takes messages in the place of strategies, stores them.

open ── full, or 2 ms old ──▶ sealed ── sent ──▶ stored ── confirmed by the sink ──▶ gone
                                ▲         │
                                └─────────┘ refused, lost, or the server went: look where the
                                            stream ends, and send again from there
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import TYPE_CHECKING

from qts.domain import OperationError
from qts.router.distributed.edge import EdgeConfig
from qts.router.distributed.nats_link import NatsLink
from qts.router.distributed.send_window import DeliveryCounts, SendWindow
from qts.router.handlers import Messages

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.js.api import StreamState

_LINGER_S = 0.002
_LOOK_S = 0.25  # how often the stream is looked at while all goes well
_LOOK_SOON_S = 0.005
_ANSWER_S = 2.0


class EdgeSender:
    """`take` is the work of every strategy of the source: wrap it with `batch`."""

    def __init__(self, edge: EdgeConfig) -> None:
        self.edge = edge
        self.failure: str | None = None
        self._link = NatsLink(edge, "source")
        self._window = SendWindow(edge.batch, edge.held)
        self._change = threading.Condition()  # guards the window and the failure
        self._wake = asyncio.Event()
        self._sent = 0
        self._generation = 0  # rises whenever sending begins again
        self._out_of_step = False
        self._refusal = ""
        self._reconnects = 0
        self._progress_at = self._looked_at = self._answered_at = 0.0

    def open(self) -> None:
        """Ready to take; refused when this run has been sent before."""
        self._link.open()
        try:
            self._link.run(self._link.make_stream())
        except BaseException:
            self._link.close()
            raise
        self._progress_at = time.monotonic()
        self._job = self._link.spawn(self._work())

    def take(self, messages: Messages) -> None:
        """Waits while too much is under way; raises once nothing more can be sent."""
        with self._change:
            while self.failure is None and self._window.unstored >= 2 * self.edge.in_flight:
                self._change.wait(0.1)
            if self.failure is not None:
                raise OperationError(self.failure)
            news = self._window.add(messages)
        if news:
            self._link.call_soon(self._wake.set)

    def finish(self) -> None:
        """No more will come: tell the sink, with the count of every stream."""
        with self._change:
            if self.failure is None and not self._window.ended:
                self._window.finish()
        self._link.call_soon(self._wake.set)

    def wait(self, timeout: float) -> bool:
        """True once the sink has confirmed everything, or when that has failed."""
        with self._change:
            return self._change.wait_for(
                lambda: self._window.complete or self.failure is not None, timeout
            )

    def give_up(self, reason: str) -> None:
        with self._change:
            if self.failure is None and not self._window.complete:
                self.failure = reason
            self._change.notify_all()

    def close(self) -> None:
        """The stream goes too when all of it was confirmed; otherwise it waits for a sink."""
        self.give_up("the outlet was closed")
        self._link.call_soon(self._wake.set)
        self._job.result()
        if self._window.complete:
            self._link.run(self._link.remove_stream())
        self._link.close()

    @property
    def carried(self) -> DeliveryCounts:
        with self._change:
            return self._window.carried()

    @property
    def stored(self) -> int:
        """The number of the last batch that the server has."""
        return self._window.stored

    # ---- on the loop of the link ----

    async def _work(self) -> None:
        try:
            inbox = self._link.client.new_inbox()
            await self._link.client.subscribe(f"{inbox}.*.*", cb=self._note_answer)
            while self.failure is None and not self._window.complete:
                await self._pause()
                if self._due_to_look():
                    await self._look()
                await self._send_due(inbox)
                self._look_for_stall()
        except OperationError as error:
            self.give_up(str(error))
        except Exception as error:  # noqa: BLE001 - else a take or a wait would never come back
            self.give_up(f"the outlet broke: {type(error).__name__}: {error}")

    async def _pause(self) -> None:
        window = self._window
        wait = _LINGER_S if window.is_open else 10 * _LOOK_SOON_S
        try:
            async with asyncio.timeout(_LOOK_SOON_S if self._soon else wait):
                await self._wake.wait()
        except TimeoutError:
            with self._change:
                if not window.unstored:  # while others are under way it may still fill up
                    window.seal()
        self._wake.clear()

    @property
    def _soon(self) -> bool:
        return self._out_of_step or self._window.waits_for_sink

    def _due_to_look(self) -> bool:
        now = time.monotonic()
        if self._link.reconnects != self._reconnects:
            self._reconnects, self._out_of_step = self._link.reconnects, True
        unanswered = self._sent > self._window.stored
        if unanswered and now - max(self._answered_at, self._progress_at) > _ANSWER_S:
            self._out_of_step = True
        return now - self._looked_at >= (_LOOK_SOON_S if self._soon else _LOOK_S)

    async def _look(self) -> None:
        state = await self._link.state()
        self._looked_at = time.monotonic()
        if state is None:
            return
        if state.last_seq < self._window.confirmed:
            # Of a stream that was emptied, a killed server may forget where it ended.
            await self._link.move_end(self._window.confirmed)
        else:
            with self._change:
                self._compare(state)

    def _compare(self, state: StreamState) -> None:
        window = self._window
        if state.last_seq > window.sealed:
            raise OperationError(f"somebody else writes into stream {self.edge.stream}")
        confirmed = state.first_seq - 1 if state.messages else state.last_seq
        news = window.note_confirmed(confirmed)
        if self._out_of_step:
            news = state.last_seq > window.stored or news
            window.note_end(state.last_seq)
            self._sent, self._generation = state.last_seq, self._generation + 1
            self._answered_at = time.monotonic()
            self._out_of_step = False
        if news:
            self._note_progress()

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
                self._refusal, self._out_of_step = str(error), True
                return
            self._sent = due.number

    async def _note_answer(self, answer: Msg) -> None:
        generation, number = answer.subject.rsplit(".", 2)[1:]
        if int(generation) != self._generation:
            return  # to something that was sent again since
        self._answered_at = time.monotonic()
        told = json.loads(answer.data) if answer.data else {"error": {"description": "no answer"}}
        if "error" in told:
            self._refusal = told["error"].get("description", "refused")
            self._out_of_step = True
        else:
            with self._change:
                if self._window.note_stored(int(number)):
                    self._note_progress()
        self._wake.set()

    def _note_progress(self) -> None:
        self._progress_at, self._refusal = time.monotonic(), ""
        self._change.notify_all()

    def _look_for_stall(self) -> None:
        window, now = self._window, time.monotonic()
        if window.idle:
            self._progress_at = now
        since = self._progress_at
        if window.waits_for_sink and self._link.connected:
            since = max(since, self._link.peer_at)
        if now - since <= self.edge.patience_s:
            return
        span = f"for {self.edge.patience_s:g} s"
        if not self._link.connected:
            raise OperationError(f"{self.edge.place} has been gone {span}")
        if window.waits_for_sink:
            raise OperationError(
                f"no sink of run {self.edge.run} was heard {span}; batches {window.confirmed + 1}"
                f" to {window.stored} wait in stream {self.edge.stream}"
            )
        because = f": {self._refusal}" if self._refusal else ""
        raise OperationError(f"{self.edge.place} has stored nothing {span}{because}")
