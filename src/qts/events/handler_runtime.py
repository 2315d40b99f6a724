"""Handlers installed in the lanes, with their threads, event loops and processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from qts.domain import OperationError
from qts.events.catalogue import Catalogue, Event, EventType, Priority
from qts.events.config import EventsConfig
from qts.events.dispatch import AckTracker, HandlerRetry, LoopThread, ManagedHandlers
from qts.events.handlers import EventHandler, HandlerTable, Publisher
from qts.events.lane_child import LaneChildSetup
from qts.events.lane_process import LaneProcess, LaneProcessCallbacks
from qts.events.lanes import Lanes

_STOP_TIMEOUT_S = 1.0  # for each process and event loop
_ASYNC_WINDOW = 16

Row = tuple[str, object, int, bool]
LaneCallback = Callable[[int, str], None]  # lane, reason


class HandlerRuntime:
    """Registered handlers and what runs them."""

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
        self.acks = AckTracker()
        self._managed: list[ManagedHandlers] = []
        self._critical_only = False
        self._loops: list[LoopThread] = []
        self._workers: list[int] = []  # the lane of each thread
        self.processes: list[LaneProcess] = []

    # --- registering ----------------------------------------------------------------------------

    def add(self, target: str | Priority, handler: EventHandler) -> None:
        self._handlers.add(target, handler)
        self.install()

    def handler_name(self, type_number: int, handler: int) -> str:
        """Return a handler's name, `outside the lanes` when the type number is unknown."""
        if not 0 <= type_number < len(self._names):
            return "outside the lanes"
        name = self._names[type_number]
        handlers = self._handlers.handlers_of(name)
        if self._handlers.is_isolated(self._catalogue[name]) or any(
            each.type_name == name for each in self._managed
        ):
            return ", ".join(each.name for each in handlers)  # the lane calls them together
        return handlers[handler].name if handler < len(handlers) else name

    def install(self) -> None:
        """Set the handlers of every type in the lanes; only while no thread runs."""
        self._managed = []
        for each in self._catalogue:
            isolated = self._handlers.is_isolated(each)
            rows = self._isolated_rows(each) if isolated else self._rows(each)
            self._lanes.set_handlers(self._numbers[each.name], rows)

    def _rows(self, event_type: EventType) -> list[Row]:
        handlers = self._handlers.handlers_of(event_type.name)
        number = self._numbers[event_type.name]
        rows: list[Row] = [
            ("compiled", each.address, each.state_address, each.essential)
            for each in handlers
            if each.kind == "compiled"
        ]
        rest = [each for each in handlers if each.kind != "compiled"]
        if rest and (event_type.requires_ack or any(each.kind == "async" for each in rest)):
            managed = ManagedHandlers(event_type, rest, self._retry, self.acks, self._lanes, number)
            managed.critical_only = self._critical_only
            self._managed.append(managed)
            # How many events async handlers may have in flight; the others wait in the lane.
            window = 0
            if any(each.kind == "async" for each in rest):
                size = self._config.lanes[event_type.priority].queue_size
                window = max(1, min(_ASYNC_WINDOW, size // 4))
            rows.append(("managed", managed, window, True))  # it skips what is not essential itself
        else:
            rows += [(each.kind, each.call, 0, each.essential) for each in rest]
        return rows

    def _isolated_rows(self, event_type: EventType) -> list[Row]:
        """Return one placeholder, by which the lane decides whether it forms batches."""
        name = event_type.name
        reported = {each for process in self.processes for each in process.kinds.get(name, ())}
        kinds = reported or {each.kind for each in self._handlers.handlers_of(name)}
        batched = bool(kinds & {"batch", "rows"})
        return [("batch" if batched else "plain", _handled_in_process, 0, True)] if kinds else []

    # --- start and stop -------------------------------------------------------------------------

    def start(self, died: LaneCallback, not_started: LaneCallback) -> None:
        """Start event loops and processes; they get no events before `feed`."""
        callbacks = LaneProcessCallbacks(
            self.acks.settle, self.acks.dropped, self._retry.add_dead_letter, died, not_started
        )
        for number, lane in enumerate(self._config.lanes):
            if lane.isolation != "process":
                continue
            setup = LaneChildSetup(
                number,
                os.getpid(),
                lane.process_threads,
                tuple(self._catalogue),
                {
                    each.name: self._handlers.handlers_of(each.name)
                    for each in self._catalogue
                    if each.priority == number
                },
            )
            process = LaneProcess(setup, self._catalogue, lane, self._lanes, callbacks)
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
        """Stop processes and event loops; return whether every handler returned."""
        ended = [process.stop(_STOP_TIMEOUT_S) for process in self.processes]
        return all(ended + [loop.stop(_STOP_TIMEOUT_S) for loop in self._loops])

    def add_workers(self) -> None:
        """Add the threads of the lanes that are not isolated; number 0 is P0's."""
        threaded = [lane.isolation == "thread" for lane in self._config.lanes]
        pool = [lane for lane in (2, 3) if threaded[lane]]
        if pool != [2, 3]:
            self._lanes.separate_workers()
        for lanes, count in (
            ([0], 1),
            ([1], self._config.p1_workers if threaded[1] else 0),
            (pool, self._config.pool_workers if pool else 0),
        ):
            for _ in range(count):
                self._lanes.add_worker(lanes)
                self._workers.append(lanes[0])

    def lane_of(self, worker: int) -> int:
        """Return the highest lane that a thread serves."""
        return self._workers[min(worker, len(self._workers) - 1)]  # spare threads follow the pool

    # --- while running --------------------------------------------------------------------------

    def apply_level(self, paused: Sequence[bool], critical_only: bool) -> None:
        self._critical_only = critical_only
        for process in self.processes:
            process.set_mode(paused[process.lane], critical_only)
        for each in self._managed:
            each.critical_only = critical_only

    def resume(self, lane: int) -> None:
        for process in self.processes:
            if process.lane == lane:
                process.set_mode(paused=False, critical_only=False)

    def set_batch_size(self, lane: int, size: int) -> None:
        for process in self.processes:
            if process.lane == lane:
                process.window.batch = size

    def running_handlers(self) -> Iterator[tuple[str, int]]:
        """Yield handlers running in processes with their time so far in ns."""
        for process in self.processes:
            yield from process.running_handlers()

    # --- called by the lanes --------------------------------------------------------------------

    def failed(self, event: Event, handler: int, error: BaseException, sequence: int) -> bool:
        name = event.event_type
        return self._retry.retry(
            event, self._handlers.handlers_of(name)[handler], error, sequence, self._numbers[name]
        )

    def failed_batch(
        self,
        events: Sequence[Event],
        handler: int,
        error: BaseException,
        sequences: Sequence[int],
    ) -> list[bool]:
        name = events[0].event_type
        return self._retry.retry_batch(
            events, self._handlers.handlers_of(name)[handler], error, sequences, self._numbers[name]
        )


def _handled_in_process(_events: object) -> NoReturn:
    raise OperationError("handlers run in an isolated process; start the engine")
