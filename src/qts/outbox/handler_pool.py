"""Claimed events: the groups that wait, and the slots that run their handlers.

A handler past its deadline is cancelled; in an ordered stream also one whose lock is about to
expire, because another worker may then start the event. If it ignores that, its slot is replaced
and its result discarded.

A slot ends only by `close()`. Any other cancellation of its task comes from the pool or from the
handler itself, and costs the running event alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence

from qts import telemetry
from qts.domain import Clock
from qts.outbox.bus import EventDispatcher
from qts.outbox.claims import BatchCompleter, ClaimedEvent, Claims
from qts.outbox.config import StreamConfig
from qts.outbox.handling import HandlerResult, log_result, run_handler, timeout_result

CHECK_INTERVAL_S = 0.1
CANCEL_TIMEOUT_S = 1.0  # from the cancellation of a handler until its slot is replaced
YIELD_AFTER = 50  # events after which a slot yields to the event loop

EventGroup = Sequence[ClaimedEvent]  # handled one after another
log = telemetry.logger("outbox")


class _Slot:
    """Task that runs handlers one after another."""

    __slots__ = ("abandoned", "cancelled_ns", "group", "index", "running", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.group: EventGroup = ()
        self.index = 0
        self.running: ClaimedEvent | None = None
        self.cancelled_ns = 0
        self.abandoned = False


class HandlerPool:
    """Runs the handlers of claimed events on a fixed number of slots."""

    def __init__(
        self, claims: Claims, dispatcher: EventDispatcher, completer: BatchCompleter, clock: Clock
    ) -> None:
        self._config = claims.config
        self._dispatcher = dispatcher
        self._completer = completer
        self._clock = clock
        self._timeout_ns = round(claims.config.handler_timeout_s * 1e9)
        self._lock_margin_ns = _lock_margin_ns(claims.config)
        self._held: dict[int, ClaimedEvent] = {}
        self._groups: deque[EventGroup] = deque()
        self._idle: list[asyncio.Future[None]] = []  # of slots without a group
        self._waiting = 0
        self._capacity_below = 0
        self._closing = False
        self._closed = False
        self._slots: list[_Slot] = []
        self.capacity = asyncio.Event()

    def open(self) -> None:
        self._slots = [self._new_slot() for _ in range(self._config.concurrency)]

    def close(self) -> None:
        """Cancel all slots without waiting for them."""
        self._closed = True
        for slot in self._slots:
            if slot.task is not None:
                slot.task.cancel()

    def submit(self, claimed: Iterable[ClaimedEvent]) -> None:
        """Queue events; in an ordered stream those of one aggregate form one group."""
        held = {each.id: each for each in claimed}
        self._held |= held
        self._waiting += len(held)
        self._groups.extend(self._group(held.values()))
        if self._closing:
            self.release_waiting()
        self._wake_slots(len(self._groups))

    def _wake_slots(self, count: int) -> None:
        while self._idle and count > 0:
            wakeup = self._idle.pop()
            if not wakeup.done():  # the slot is being cancelled and looks for groups by itself
                wakeup.set_result(None)
                count -= 1

    def _group(self, claimed: Iterable[ClaimedEvent]) -> Iterable[EventGroup]:
        if not self._config.ordered:
            return [(each,) for each in claimed]
        by_aggregate: dict[tuple[str, str, str], list[ClaimedEvent]] = {}
        for each in claimed:
            delivery = each.delivery
            key = (delivery.account, delivery.aggregate_type, delivery.aggregate_id)
            by_aggregate.setdefault(key, []).append(each)
        return by_aggregate.values()

    def release_waiting(self) -> None:
        """Release waiting events; from now on a group stops after the running event."""
        self._closing = True
        while self._groups:
            group = self._groups.popleft()
            self._waiting -= len(group)
            self._completer.release(group)

    def has_capacity(self, batch: int) -> bool:
        """Return whether to claim: one batch may wait, so that handlers do not idle."""
        self._capacity_below = batch
        return self._waiting <= batch and self._completer.backlog <= 4 * self._config.batch

    def held(self) -> list[ClaimedEvent]:
        """Return the events whose results are not written yet."""
        return list(self._held.values())

    def holds(self, claimed: ClaimedEvent) -> bool:
        return self._held.get(claimed.id) is claimed

    def completed(self, claimed: Sequence[ClaimedEvent]) -> None:
        held = self._held
        for each in claimed:
            if held.get(each.id) is each:
                del held[each.id]
        self.capacity.set()

    def apply_heartbeat(self, sent: Sequence[ClaimedEvent], kept: set[int], until_ns: int) -> None:
        """Apply extended locks and cancel handlers whose lock was lost."""
        for each in sent:
            if each.id in kept:
                each.held_until_ns = until_ns
            elif self.holds(each):
                each.held_until_ns = 0
                self._cancel(each)

    async def wait_idle(self) -> None:
        """Wait until no handler runs."""
        while any(slot.running for slot in self._slots):  # noqa: ASYNC110 - timeouts end them
            await asyncio.sleep(CHECK_INTERVAL_S / 10)

    async def enforce_timeouts(self) -> None:
        """Cancel handlers past their deadline, until cancelled."""
        tick_s = min(CHECK_INTERVAL_S, self._config.handler_timeout_s / 4)
        while True:
            await self._clock.sleep(tick_s)
            now_ns = self._clock.monotonic_ns()
            for slot in self._slots:
                self._check_timeout(slot, now_ns)

    def _check_timeout(self, slot: _Slot, now_ns: int) -> None:
        if slot.task is not None and slot.task.done() and not slot.task.cancelled():
            slot.task.result()  # a bug in the pool, not in a handler: fails the worker
        running = slot.running
        if running is None or slot.task is None:
            return
        if not slot.cancelled_ns:
            if now_ns > running.delivery.deadline_ns or self._loses_lock(running, now_ns):
                slot.cancelled_ns = now_ns
                slot.task.cancel()
        elif now_ns - slot.cancelled_ns > CANCEL_TIMEOUT_S * 1e9:
            self._replace_slot(slot, running)

    def _replace_slot(self, slot: _Slot, running: ClaimedEvent) -> None:
        log.error("handler ignored cancellation; slot replaced", **running.delivery.ids())
        slot.abandoned = True
        slot.running = None
        self._finish(slot, running, self._overdue_result(running, slot.cancelled_ns))
        self._slots[self._slots.index(slot)] = self._new_slot()

    def _cancel(self, claimed: ClaimedEvent) -> None:
        for slot in self._slots:
            if slot.running is claimed and slot.task is not None and not slot.cancelled_ns:
                slot.cancelled_ns = self._clock.monotonic_ns()
                slot.task.cancel()

    def _new_slot(self) -> _Slot:
        slot = _Slot()
        slot.task = asyncio.create_task(self._serve(slot))
        return slot

    async def _serve(self, slot: _Slot) -> None:
        while not slot.abandoned:
            try:
                if self._groups:
                    await asyncio.sleep(0)
                else:
                    await self._wait_for_groups()
            except asyncio.CancelledError:  # or left behind by a handler that cancelled its task
                if self._closed:
                    raise
                continue
            await self._run_groups(slot)

    async def _wait_for_groups(self) -> None:
        while not self._groups:
            self._completer.flush()
            wakeup = asyncio.get_running_loop().create_future()
            self._idle.append(wakeup)
            try:
                await wakeup
            except asyncio.CancelledError:
                if wakeup in self._idle:
                    self._idle.remove(wakeup)
                raise

    async def _run_groups(self, slot: _Slot) -> None:
        """Handle waiting groups in one call, as a call per event costs as much as the event."""
        budget = YIELD_AFTER
        while self._groups and budget > 0:
            slot.group, slot.index = self._groups.popleft(), 0
            self._waiting -= len(slot.group)
            budget -= len(slot.group)
            if self._waiting <= self._capacity_below:
                self.capacity.set()
            while slot.index < len(slot.group) and self._start(slot):
                claimed = slot.group[slot.index]
                try:
                    result = claimed.invalid or await run_handler(
                        self._dispatcher, claimed.delivery
                    )
                except asyncio.CancelledError:
                    if self._closed:
                        raise
                    result = self._cancelled_result(slot, claimed)
                if slot.abandoned:
                    return
                slot.running = None
                self._finish(slot, claimed, result)
                if slot.task is not None and slot.task.cancelling():
                    await self._clear_cancellation(slot.task)

    async def _clear_cancellation(self, task: asyncio.Task[None]) -> None:
        """Reset the count of cancellations, and take one that was requested but not raised yet."""
        while task.cancelling():
            task.uncancel()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self._closed:
                raise

    def _start(self, slot: _Slot) -> bool:
        """Start the next event of the group; return False if its lock is lost or about to be."""
        claimed = slot.group[slot.index]
        now_ns = self._clock.monotonic_ns()
        if now_ns >= claimed.held_until_ns or self._loses_lock(claimed, now_ns):
            # Another worker may already have claimed it and the events behind it.
            self.completed(slot.group[slot.index :])
            return False
        claimed.delivery.deadline_ns = now_ns + self._timeout_ns
        slot.running, slot.cancelled_ns = claimed, 0
        return True

    def _loses_lock(self, claimed: ClaimedEvent, now_ns: int) -> bool:
        """Return whether another worker may soon start this event or one before it."""
        return self._config.ordered and now_ns >= claimed.held_until_ns - self._lock_margin_ns

    def _cancelled_result(self, slot: _Slot, claimed: ClaimedEvent) -> HandlerResult:
        if slot.cancelled_ns:
            result = self._overdue_result(claimed, slot.cancelled_ns)
        else:
            result = HandlerResult("retry", "CANCELLED", "handler cancelled itself")
        log_result(claimed.delivery, result)
        return result

    def _overdue_result(self, claimed: ClaimedEvent, cancelled_ns: int) -> HandlerResult:
        """Return the result of a handler that the pool cancelled at this time."""
        if cancelled_ns > claimed.delivery.deadline_ns:
            return timeout_result(claimed.delivery)
        return HandlerResult("retry", "LOCK_LOST", "the lock could not be extended in time")

    def _finish(self, slot: _Slot, claimed: ClaimedEvent, result: HandlerResult) -> None:
        """Pass the result on; after a failure the rest of the group waits for its retry."""
        self._completer.add(claimed, result)
        slot.index += 1
        stops = result.kind == "retry" or self._closing
        if stops and slot.index < len(slot.group):
            self._completer.release(slot.group[slot.index :])
            slot.index = len(slot.group)


def _lock_margin_ns(config: StreamConfig) -> int:
    """Return how long before its expiry a lock that was not extended counts as lost.

    The handler then has time to end. Extended every third of its TTL, a lock has two thirds left.
    """
    return round(min(CHECK_INTERVAL_S + CANCEL_TIMEOUT_S, config.lock_ttl_s / 4) * 1e9)
