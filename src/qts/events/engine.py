"""The engine: publishers on one side, handlers on the other, four lanes between them.

    made ──start──▶ running ──stop──▶ stopped
                       │ ▲
                 pause │ │ resume, lane by lane

Until it is started it takes events and handlers; they are handled once it runs. A stop refuses new
events, drains P0 and P1, ends the threads after their current event and reports what is left.
"""

from __future__ import annotations

import asyncio
import atexit
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt

from qts import telemetry
from qts.domain import Clock, EventRefused, LaneFull, SystemClock
from qts.events import lanes as native
from qts.events import status as figures
from qts.events.catalogue import Catalogue
from qts.events.config import EventsConfig
from qts.events.dead_letters import DeadLetters, Store, fresh
from qts.events.dispatch import Acks, Managed, Retry
from qts.events.event import Event, Priority
from qts.events.handlers import Async, Handler, Handlers, Plain, as_handler
from qts.events.load import Level, Load
from qts.events.loops import LoopThread
from qts.events.monitor import Hooks, Monitor
from qts.events.payloads import Payload

log = telemetry.logger("events")

_FIRST = (int(Priority.P0), int(Priority.P1))  # what a stop drains


class Stopped(msgspec.Struct, frozen=True):
    """How a stop went."""

    drained: bool  # P0 and P1 are empty
    ended: bool  # every handler has returned
    rest: dict[str, int]  # events that were not handled any more, by lane


class Engine:
    """P0 to P3. Any thread may publish; handlers are registered before the start."""

    def __init__(
        self,
        config: EventsConfig | None = None,
        catalogue: Catalogue | None = None,
        clock: Clock | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self.config = config or EventsConfig()
        self.catalogue = catalogue or Catalogue()
        self._clock = clock or SystemClock()
        self.dead_letters = DeadLetters(self.config.dead_letters, self._clock)
        self._handlers = Handlers(self.catalogue)
        self._lanes = native.build(self.config, self.catalogue)
        self._numbers = {each.name: number for number, each in enumerate(self.catalogue)}
        self._names = list(self._numbers)
        self._load = Load(self.config)
        self._acks = Acks()
        self._monitor = Monitor(self, hooks or Hooks())
        self._retry = Retry(self._lanes, self.dead_letters, self._monitor.gave_up)
        self._managed: list[Managed] = []
        self._loops: list[LoopThread] = []
        self._state = "made"
        self._paused_by_hand: set[int] = set()
        self._lanes.set_callbacks(
            native.refusal(self.catalogue), self._check, self._failed, self._failed_batch
        )
        # The lanes' own: a method around it would cost as much again.
        self.publish: Callable[..., None] = self._lanes.publish
        self.try_publish: Callable[[Event], bool] = self._lanes.try_publish
        self.publish_many: Callable[..., int] = self._lanes.publish_many

    # --- handlers -------------------------------------------------------------------------------

    def on(
        self,
        what: str | Priority,
        handler: Plain | Async | Handler,
        *,
        essential: bool = False,
    ) -> None:
        """Call `handler` for a type (PRICE_TICK), a pattern (FILL_*) or a whole lane.

        An essential handler goes on in LEVEL_3, when only the critical is handled.
        """
        if self._state != "made":
            raise EventRefused(f"handlers are registered before the start; it is {self._state}")
        self._handlers.add(what, as_handler(handler, essential))
        self._install()

    def handler_name(self, type_number: int, handler: int) -> str:
        """Who that is; `outside the lanes` when it is none of ours."""
        if not 0 <= type_number < len(self._names):
            return "outside the lanes"
        name = self._names[type_number]
        have = self._handlers.of(name)
        if any(each.manages(name) for each in self._managed):
            return ", ".join(each.name for each in have)
        return have[handler].name if handler < len(have) else name

    def _install(self) -> None:
        self._managed = []
        for kind in self.catalogue:
            have = self._handlers.of(kind.name)
            number = self._numbers[kind.name]
            rows: list[tuple[str, object, int, bool]] = [
                ("compiled", each.address, each.state_address, each.essential)
                for each in have
                if each.kind == "compiled"
            ]
            rest = [each for each in have if each.kind != "compiled"]
            if rest and (kind.requires_ack or any(each.kind == "async" for each in rest)):
                managed = Managed(kind, rest, self._retry, self._acks, self._lanes, number)
                self._managed.append(managed)
                rows.append(("managed", managed, 0, any(each.essential for each in rest)))
            else:
                rows += [(each.kind, each.call, 0, each.essential) for each in rest]
            self._lanes.set_handlers(number, rows)

    # --- publishing -----------------------------------------------------------------------------

    def event(self, name: str, payload: Payload, source: str = "") -> Event:
        """An event of this type, now."""
        return self.catalogue[name].event(
            payload,
            event_id=native.event_id(),
            timestamp=self._clock.now().timestamp(),
            source=source,
        )

    def emit(self, name: str, payload: Payload, source: str = "") -> Event:
        event = self.event(name, payload, source)
        self.publish(event)
        return event

    async def publish_async(self, event: Event, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as publish
        """As `publish`, without blocking the loop while the lane is full."""
        end = None if timeout is None else self._clock.monotonic_ns() + timeout * 1e9
        while not self.try_publish(event):
            left = 0.05 if end is None else min(0.05, (end - self._clock.monotonic_ns()) / 1e9)
            if left <= 0:
                raise LaneFull(f"{event.event_type} found no room in lane P{event.priority}")
            await asyncio.to_thread(self._lanes.wait_for_room, event.priority, left)

    def publish_for_ack(self, event: Event) -> Future[None]:
        """Publish; the future is done when every handler has, and fails when one gave up."""
        if not self.catalogue[event.event_type].requires_ack:
            raise EventRefused(f"events of type {event.event_type} are not acknowledged")
        future = self._acks.expect(event)
        try:
            self.publish(event)
        except BaseException:
            self._acks.forget(event)
            raise
        return future

    # --- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        if self._state != "made":
            raise EventRefused(f"an engine is started once; this one is {self._state}")
        self._switch_interval = sys.getswitchinterval()
        sys.setswitchinterval(self.config.switch_interval_ms / 1000)
        self._loops = [LoopThread("qts-events-p0"), LoopThread("qts-events-rest")]
        self._install()
        for each in self._managed:
            each.start(self._loops[each.lane != Priority.P0])
        self._lanes.add_worker([0])
        for _ in range(self.config.p1_workers):
            self._lanes.add_worker([1])
        for _ in range(self.config.pool_workers):
            self._lanes.add_worker([2, 3])
        cpu = self.config.p0_cpu if self.config.p0_cpu >= 0 else None
        self._lanes.start(cpu, self.config.p0_realtime)
        self._state = "running"
        self._monitor.start()
        atexit.register(self.stop)

    def stop(self) -> Stopped:
        """Drain P0 and P1, end the threads, report the rest. A second stop reports the same."""
        if self._lanes.inside():
            raise EventRefused("a handler cannot stop the engine that runs it; ask another thread")
        if self._state == "running":
            self._state = "stopping"
            self._lanes.open(False)
            for lane in _FIRST:
                self._lanes.pause(lane, False)
            self._drained = self._lanes.drained(_FIRST, self.config.stop_timeout_s)
            self._monitor.stop()
            self._ended = self._lanes.halt(1.0)
            for loop in self._loops:
                self._ended &= loop.stop(1.0)
            sys.setswitchinterval(self._switch_interval)
            self._lanes.clear()
            atexit.unregister(self.stop)
            self._state = "stopped"
            self._monitor.tell()
            self._say_rest()
        elif self._state == "made":
            self._lanes.open(False)
            self._state, self._drained, self._ended = "stopped", False, True
        return Stopped(self._drained, self._ended, self._rest())

    def _rest(self) -> dict[str, int]:
        return {
            name: waiting
            for number, name in enumerate(figures.LANES)
            if (waiting := self._lanes.counts(number)["waiting"])
        }

    def _say_rest(self) -> None:
        if not self._ended:
            log.error("a handler did not return; its thread is left behind")
        if rest := self._rest():
            log.warning("stopped with events that were not handled", **rest)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # --- steering -------------------------------------------------------------------------------

    def pause(self, lane: Priority) -> None:
        """Stop a lane at its next event; what is published to it waits."""
        if lane == Priority.P0:
            raise EventRefused("P0 is never paused")
        self._paused_by_hand.add(int(lane))
        self.apply()

    def resume(self, lane: Priority) -> None:
        self._paused_by_hand.discard(int(lane))
        self.apply()

    def degrade(self, level: Level | None) -> None:
        """Hold a level by hand; None lets the load decide again."""
        self._load.by_hand = level
        self.check()

    def check(self) -> None:
        """Look at the load and act on it; runs every `check_interval_ms` by itself."""
        self._monitor.check()

    def apply(self) -> None:
        """Pause what a person or the level of degradation wants paused."""
        level = self._load.level
        by_level = {3} if level >= Level.P3_PAUSED else set()
        if level >= Level.P2_P3_PAUSED:
            by_level.add(2)
        for lane in (1, 2, 3):
            self._lanes.pause(lane, lane in by_level or lane in self._paused_by_hand)
        self._lanes.set_critical_only(level == Level.CRITICAL_ONLY)
        for each in self._managed:
            each.critical_only = level == Level.CRITICAL_ONLY

    # --- looking --------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        return self._state

    @property
    def level(self) -> Level:
        return self._load.level

    @property
    def lanes(self) -> native.Lanes:
        """The native lanes, for tests and tools that step them by hand."""
        return self._lanes

    @property
    def load(self) -> Load:
        return self._load

    def status(self) -> figures.Status:
        return figures.read(
            self._lanes,
            self.config,
            self._monitor.pressures,
            self._load.level,
            self.dead_letters.count,
        )

    def drained(self, seconds: float, *lanes: Priority) -> bool:
        """Wait until these lanes (all, when none is named) are empty and their handlers done."""
        return self._lanes.drained([int(lane) for lane in lanes or tuple(Priority)], seconds)

    def dropped(self) -> dict[str, dict[str, int]]:
        """What was dropped for want of room: counts by type, then by key (the symbol)."""
        found: dict[str, dict[str, int]] = {}
        for number, key, count in self._lanes.drops():
            found.setdefault(self._names[number], {})[key] = count
        return found

    def audit(self) -> npt.NDArray[np.void]:
        """What became of every event since the last call; see `events.AUDIT`."""
        return np.frombuffer(self._lanes.audit(), dtype=native.AUDIT)

    # --- dead letters ---------------------------------------------------------------------------

    def replay(self, number: int) -> Event:
        """Publish a dead letter again."""
        letter = self.dead_letters.show(number)
        event = fresh(letter)
        self.publish(event)
        self.dead_letters.remove(number)
        return event

    async def replay_kept(self, store: Store, number: int) -> Event:
        """Publish a dead letter of the store again."""
        event = fresh(await store.show(number))
        await self.publish_async(event)
        await store.replayed(number)
        return event

    # --- called by the lanes --------------------------------------------------------------------

    def _check(self, event: Event) -> None:
        self.catalogue[event.event_type].check(event)

    def _failed(self, event: Event, handler: int, error: BaseException, sequence: int) -> bool:
        name = event.event_type
        return self._retry.again(
            event, self._handlers.of(name)[handler], error, sequence, self._numbers[name]
        )

    def _failed_batch(
        self,
        events: Sequence[Event],
        handler: int,
        error: BaseException,
        sequences: Sequence[int],
    ) -> list[bool]:
        name = events[0].event_type
        return self._retry.batch_again(
            events, self._handlers.of(name)[handler], error, sequences, self._numbers[name]
        )
