"""Handlers joined to the lanes: called by a lane's threads, on a loop, or in a process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import NoReturn

from qts.domain import OperationError
from qts.events.catalogue import Catalogue, EventType
from qts.events.config import EventsConfig
from qts.events.dispatch import AckTracker, HandlerRetry, ManagedHandlers
from qts.events.event import Event, Priority
from qts.events.handlers import EventHandler, HandlerTable, Publisher
from qts.events.lanes import Lanes
from qts.events.loops import LoopThread
from qts.events.process.lane_process import LaneProcess, LaneProcessCallbacks
from qts.events.process.main import LaneChildSetup

_ENDING_S = 1.0  # what a stop gives each kind of handler to return

Row = tuple[str, object, int, bool]
Told = Callable[[int, str], None]


class HandlerRuntime:
    """Who is called, and where; built up before the start."""

    def __init__(
        self,
        config: EventsConfig,
        catalogue: Catalogue,
        lanes: Lanes,
        publisher: Publisher,
        retry: HandlerRetry,
    ) -> None:
        self._config = config
        self._catalogue = catalogue
        self._lanes = lanes
        self._retry = retry
        self._handlers = HandlerTable(catalogue, config, publisher)
        self._numbers = {each.name: number for number, each in enumerate(catalogue)}
        self._names = list(self._numbers)
        self._acks = AckTracker()
        self._managed: list[ManagedHandlers] = []
        self._loops: list[LoopThread] = []
        self._workers: list[int] = []  # the lane of each thread
        self.processes: list[LaneProcess] = []

    # --- registering ----------------------------------------------------------------------------

    def add(self, what: str | Priority, handler: EventHandler) -> None:
        self._handlers.add(what, handler)
        self.install()

    def name_of(self, type_number: int, handler: int) -> str:
        """Who that is; `outside the lanes` when it is none of ours."""
        if not 0 <= type_number < len(self._names):
            return "outside the lanes"
        name = self._names[type_number]
        have = self._handlers.of(name)
        together = self._handlers.is_isolated(self._catalogue[name]) or any(
            each.manages(name) for each in self._managed
        )
        if together:
            return ", ".join(each.name for each in have)
        return have[handler].name if handler < len(have) else name

    def install(self) -> None:
        """Tell the lanes; only while nothing runs."""
        self._managed = []
        for kind in self._catalogue:
            rows = self._rows_apart(kind) if self._handlers.is_isolated(kind) else self._rows(kind)
            self._lanes.set_handlers(self._numbers[kind.name], rows)

    def _rows(self, kind: EventType) -> list[Row]:
        have, number = self._handlers.of(kind.name), self._numbers[kind.name]
        rows: list[Row] = [
            ("compiled", each.address, each.state_address, each.essential)
            for each in have
            if each.kind == "compiled"
        ]
        rest = [each for each in have if each.kind != "compiled"]
        if rest and (kind.requires_ack or any(each.kind == "async" for each in rest)):
            managed = ManagedHandlers(kind, rest, self._retry, self._acks, self._lanes, number)
            self._managed.append(managed)
            rows.append(("managed", managed, 0, any(each.essential for each in rest)))
        else:
            rows += [(each.kind, each.call, 0, each.essential) for each in rest]
        return rows

    def _rows_apart(self, kind: EventType) -> list[Row]:
        """No thread of ours calls them; the lane only learns whether they wait for company."""
        known = {each for process in self.processes for each in process.kinds.get(kind.name, ())}
        kinds = known or {each.kind for each in self._handlers.of(kind.name)}
        batched = bool(kinds & {"batch", "rows"})
        return [("batch" if batched else "plain", _handled_elsewhere, 0, True)] if kinds else []

    # --- life -----------------------------------------------------------------------------------

    def start(self, died: Told, not_started: Told) -> None:
        """Loops and processes; nothing is fed to them before `feed`."""
        outcomes = LaneProcessCallbacks(self._acks.settle, self._retry.give_up, died, not_started)
        for number, lane in enumerate(self._config.lanes):
            if lane.isolation != "process":
                continue
            setup = LaneChildSetup(
                number,
                os.getpid(),
                lane.process_threads,
                tuple(self._catalogue),
                {
                    each.name: self._handlers.of(each.name)
                    for each in self._catalogue
                    if each.priority == number
                },
            )
            process = LaneProcess(setup, self._catalogue, lane, self._lanes, outcomes)
            try:
                process.start()
            except OperationError:
                self.stop()
                self.processes.clear()
                raise
            self.processes.append(process)
        self._loops = [LoopThread("qts-events-p0"), LoopThread("qts-events-rest")]
        self.install()
        for each in self._managed:
            each.start(self._loops[each.lane != Priority.P0])

    def feed(self) -> None:
        for process in self.processes:
            process.feed()

    def stop(self) -> bool:
        """False when a handler did not return."""
        ended = [process.stop(_ENDING_S) for process in self.processes]
        return all(ended + [loop.stop(_ENDING_S) for loop in self._loops])

    def add_workers(self) -> None:
        """The threads of the lanes that are handled here; number 0 is P0's."""
        here = [lane.isolation == "thread" for lane in self._config.lanes]
        pool = [lane for lane in (2, 3) if here[lane]]
        if pool != [2, 3]:
            self._lanes.serve_apart()
        for lanes, count in (
            ([0], 1),
            ([1], self._config.p1_workers if here[1] else 0),
            (pool, self._config.pool_workers if pool else 0),
        ):
            for _ in range(count):
                self._lanes.add_worker(lanes)
                self._workers.append(lanes[0])

    def lane_of(self, worker: int) -> int:
        """The highest lane that a thread serves."""
        return self._workers[worker]

    # --- while it runs --------------------------------------------------------------------------

    def apply_level(self, paused: Sequence[bool], critical_only: bool) -> None:
        for process in self.processes:
            process.steer(paused[process.lane], critical_only)
        for each in self._managed:
            each.critical_only = critical_only

    def resume(self, lane: int) -> None:
        for process in self.processes:
            if process.lane == lane:
                process.steer(paused=False, critical_only=False)

    def set_batch(self, lane: int, size: int) -> None:
        for process in self.processes:
            if process.lane == lane:
                process.flight.batch = size

    def running_handlers(self) -> Iterator[tuple[str, int]]:
        """Handlers in processes, and for how many ns each has been at its event."""
        for process in self.processes:
            yield from process.at_work()

    def expect(self, event: Event) -> Future[None]:
        return self._acks.expect(event)

    def forget(self, event: Event) -> None:
        self._acks.forget(event)

    # --- called by the lanes --------------------------------------------------------------------

    def failed(self, event: Event, handler: int, error: BaseException, sequence: int) -> bool:
        name = event.event_type
        return self._retry.again(
            event, self._handlers.of(name)[handler], error, sequence, self._numbers[name]
        )

    def failed_batch(
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


def _handled_elsewhere(_events: object) -> NoReturn:
    raise OperationError("its handlers run in a process of their own; start the engine")
