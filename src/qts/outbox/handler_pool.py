"""Events in hand: the lines that wait, and the slots that run their handlers.

A handler past its time is cancelled. One that will not end even then keeps its slot, which is
replaced, and whatever it says later is no longer heard.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence

from qts import telemetry
from qts.domain import Clock
from qts.outbox.bus import EventDispatcher
from qts.outbox.claims import ClaimedEvent, Claims
from qts.outbox.completer import BatchCompleter
from qts.outbox.handling import HandlerResult, log_result, run_handler, timeout_result

TICK_S = 0.1
GRACE_S = 1.0  # from the cancellation of a handler until it is given up
BREATHE = 50  # events after which a slot lets others run, when no handler waits for anything

Line = Sequence[ClaimedEvent]
log = telemetry.logger("outbox")


class _Slot:
    """A task that runs one handler after another, without a task for each."""

    __slots__ = ("cancelled_ns", "given_up", "line", "place", "running", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.line: Line = ()
        self.place = 0
        self.running: ClaimedEvent | None = None
        self.cancelled_ns = 0
        self.given_up = False


class HandlerPool:
    """Runs the lines given to it on a fixed number of slots."""

    def __init__(
        self, claims: Claims, dispatcher: EventDispatcher, settler: BatchCompleter, clock: Clock
    ) -> None:
        self._config = claims.config
        self._dispatcher = dispatcher
        self._settler = settler
        self._clock = clock
        self._timeout_ns = round(claims.config.handler_timeout_s * 1e9)
        self._held: dict[int, ClaimedEvent] = {}
        self._lines: deque[Line] = deque()
        self._resting: list[asyncio.Future[None]] = []  # of slots without a line
        self._waiting = 0
        self._room_from = 0
        self._closing = False
        self._slots: list[_Slot] = []
        self.room = asyncio.Event()

    def open(self) -> None:
        self._slots = [self._new_slot() for _ in range(self._config.concurrency)]

    def close(self) -> None:
        """Cancel what is left; nobody waits for a handler that does not end."""
        for slot in self._slots:
            if slot.task is not None:
                slot.task.cancel()

    def submit(self, claimed: Iterable[ClaimedEvent]) -> None:
        """Queue events for handling, those of one aggregate as one line where order matters."""
        held = {each.id: each for each in claimed}
        self._held |= held
        self._waiting += len(held)
        self._lines.extend(self._in_lines(held.values()))
        if self._closing:
            self.release_waiting()
        for _ in range(min(len(self._lines), len(self._resting))):
            self._resting.pop().set_result(None)

    def _in_lines(self, claimed: Iterable[ClaimedEvent]) -> Iterable[Line]:
        if not self._config.ordered:
            return [(each,) for each in claimed]
        by_aggregate: dict[tuple[str, str], list[ClaimedEvent]] = {}
        for each in claimed:
            key = (each.delivery.aggregate_type, each.delivery.aggregate_id)
            by_aggregate.setdefault(key, []).append(each)
        return by_aggregate.values()

    def release_waiting(self) -> None:
        """Return what waits, untried; from now on lines end after the event that runs."""
        self._closing = True
        while self._lines:
            line = self._lines.popleft()
            self._waiting -= len(line)
            self._settler.release(line)

    def has_room(self, want: int) -> bool:
        """One batch may wait while the next one is claimed: else handlers idle meanwhile."""
        self._room_from = want
        return self._waiting <= want and self._settler.backlog <= 4 * self._config.batch

    def held(self) -> list[ClaimedEvent]:
        """All whose outcome is not written yet."""
        return list(self._held.values())

    def holds(self, claimed: ClaimedEvent) -> bool:
        return self._held.get(claimed.id) is claimed

    def settled(self, claimed: Sequence[ClaimedEvent]) -> None:
        held = self._held
        for each in claimed:
            if held.get(each.id) is each:
                del held[each.id]
        self.room.set()

    def extended(self, asked: Sequence[ClaimedEvent], kept: set[int], until_ns: int) -> None:
        """The answer to a heartbeat: longer locks, and handlers stopped whose lock was lost."""
        for each in asked:
            if each.id in kept:
                each.held_until_ns = until_ns
            elif self.holds(each):
                each.held_until_ns = 0
                self._stop(each)

    async def wait_idle(self) -> None:
        """Wait until no handler runs."""
        while any(slot.running for slot in self._slots):  # noqa: ASYNC110 - the watch ends them
            await asyncio.sleep(TICK_S / 10)

    async def enforce_timeouts(self) -> None:
        """Hold handlers to their time limits."""
        tick_s = min(TICK_S, self._config.handler_timeout_s / 4)
        while True:
            await self._clock.sleep(tick_s)
            now_ns = self._clock.monotonic_ns()
            for slot in self._slots:
                self._watch(slot, now_ns)

    def _watch(self, slot: _Slot, now_ns: int) -> None:
        if slot.task is not None and slot.task.done() and not slot.task.cancelled():
            slot.task.result()  # a bug of ours, not a handler's: ends the worker and says so
        running = slot.running
        if running is None or slot.task is None:
            return
        if not slot.cancelled_ns:
            if now_ns > running.delivery.deadline_ns:
                slot.cancelled_ns = now_ns
                slot.task.cancel()
        elif now_ns - slot.cancelled_ns > GRACE_S * 1e9:
            self._give_up(slot, running)

    def _give_up(self, slot: _Slot, running: ClaimedEvent) -> None:
        log.error(
            "a handler does not end; its slot is lost",
            eventType=running.delivery.envelope.type,
            eventId=str(running.delivery.event_id),
        )
        slot.given_up = True
        slot.running = None
        self._end(slot, running, timeout_result(running.delivery))
        self._slots[self._slots.index(slot)] = self._new_slot()

    def _stop(self, claimed: ClaimedEvent) -> None:
        for slot in self._slots:
            if slot.running is claimed and slot.task is not None and not slot.cancelled_ns:
                slot.cancelled_ns = self._clock.monotonic_ns()
                slot.task.cancel()

    def _new_slot(self) -> _Slot:
        slot = _Slot()
        slot.task = asyncio.create_task(self._serve(slot))
        return slot

    async def _serve(self, slot: _Slot) -> None:
        while not slot.given_up:
            if self._lines:
                await asyncio.sleep(0)
            else:
                await self._until_lines()
            await self._work(slot)

    async def _until_lines(self) -> None:
        while not self._lines:
            self._settler.flush()
            rest = asyncio.get_running_loop().create_future()
            self._resting.append(rest)
            try:
                await rest
            except asyncio.CancelledError:
                if rest in self._resting:
                    self._resting.remove(rest)
                raise

    async def _work(self, slot: _Slot) -> None:
        """Handle what waits: many events in one call, as a call for each costs as much as one."""
        before_rest = BREATHE
        while self._lines and before_rest > 0:
            slot.line, slot.place = self._lines.popleft(), 0
            self._waiting -= len(slot.line)
            before_rest -= len(slot.line)
            if self._waiting <= self._room_from:
                self.room.set()
            while slot.place < len(slot.line) and self._begin(slot):
                claimed = slot.line[slot.place]
                try:
                    outcome = claimed.broken or await run_handler(
                        self._dispatcher, claimed.delivery
                    )
                except asyncio.CancelledError:
                    outcome = self._cut_short(slot, claimed)
                if slot.cancelled_ns and slot.task is not None:
                    slot.task.uncancel()
                if slot.given_up:
                    return
                slot.running = None
                self._end(slot, claimed, outcome)

    def _begin(self, slot: _Slot) -> bool:
        """Whether the next event of the line may be tried; not when our lock on it has ended."""
        claimed = slot.line[slot.place]
        now_ns = self._clock.monotonic_ns()
        if now_ns >= claimed.held_until_ns:
            # Somebody else may be at it already, and at those behind it.
            self.settled(slot.line[slot.place :])
            return False
        claimed.delivery.deadline_ns = now_ns + self._timeout_ns
        slot.running, slot.cancelled_ns = claimed, 0
        return True

    def _cut_short(self, slot: _Slot, claimed: ClaimedEvent) -> HandlerResult:
        if slot.cancelled_ns:
            outcome = timeout_result(claimed.delivery)
        elif slot.task is None or slot.task.cancelling():
            raise asyncio.CancelledError
        else:
            outcome = HandlerResult("retry", "CANCELLED", "its handler was cancelled from within")
        log_result(claimed.delivery, outcome)
        return outcome

    def _end(self, slot: _Slot, claimed: ClaimedEvent, outcome: HandlerResult) -> None:
        """Pass the outcome on; after a failure, those behind it wait for its next attempt."""
        self._settler.add(claimed, outcome)
        slot.place += 1
        ends = outcome.result == "retry" or self._closing
        if ends and slot.place < len(slot.line):
            self._settler.release(slot.line[slot.place :])
            slot.place = len(slot.line)
