"""A lane whose handlers run in a process of its own, as the engine's side sees it.

    lane ─take─▶ frames ─ring─▶ process ─ring─▶ outcomes ─settle─▶ lane
                    ▲                              │
                    └──── started again: again ◀── died

When the process dies, what it had finished is in the ring back. A frame that it had in hand is
tried again, each event alone and counted as a retry, until `max_retries` make it a dead letter; a
frame that it had not begun goes to the next process as it was.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import msgspec

from qts import telemetry
from qts.domain import EventRefusedError, LaneFullError, OperationError
from qts.events.catalogue import Catalogue
from qts.events.config import LaneConfig
from qts.events.dead_letters import RemoteHandlerError
from qts.events.event import Event
from qts.events.handlers import EventHandler
from qts.events.lanes import Lanes
from qts.events.process import protocol
from qts.events.process.child import LaneChild, start_child
from qts.events.process.feeder import LaneFeeder
from qts.events.process.in_flight import InFlightFrame, InFlightWindow
from qts.events.process.main import LaneChildSetup

log = telemetry.logger("events")

_LOOK_S = 0.05
_RECORDS = 512  # outcomes read in one go
_CALM_S = 5.0  # a process that lived so long did not die of its start
_LONGEST_PAUSE_S = 5.0


class LaneProcessCallbacks(msgspec.Struct, frozen=True):
    """Whom the engine's side of a lane's process tells."""

    settled: Callable[[Event, bool], None]  # an event is done; handled?
    gave_up: Callable[[Event, EventHandler, BaseException], None]
    died: Callable[[int, str], None]  # lane, how
    not_started: Callable[[int, str], None]


class LaneProcess:
    """Feeds a lane's process and settles what comes back, on two threads."""

    def __init__(
        self,
        setup: LaneChildSetup,
        catalogue: Catalogue,
        config: LaneConfig,
        lanes: Lanes,
        outcomes: LaneProcessCallbacks,
    ) -> None:
        self.lane = setup.lane
        self.flight = InFlightWindow(config.batch_size, setup.threads)
        self.kinds: dict[str, list[str]] = {}
        self._setup = setup
        self._catalogue = catalogue
        self._lanes = lanes
        self._outcomes = outcomes
        self._numbers = {each.name: number for number, each in enumerate(catalogue)}
        self._stop = threading.Event()
        self._started: OperationError | None = None
        self._patience_s = 1.0
        self._ended = True
        self._ready = threading.Event()
        self._paused = self._critical_only = False
        self._feeder = LaneFeeder(
            self.lane, lanes, catalogue, config.batch_by == "symbol", self.flight, self
        )
        name = f"qts-events-p{self.lane}"
        self._threads = [
            threading.Thread(target=self._guard, name=f"{name}-guard", daemon=True),
            threading.Thread(target=self._feed, name=f"{name}-feed", daemon=True),
        ]

    # --- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Wait until the process has its handlers; nothing is fed to it before `feed`."""
        # The guard starts it, since the process is killed when the thread that started it ends.
        self._threads[0].start()
        self._ready.wait()
        if self._started is not None:
            self._threads[0].join()
            raise self._started

    def feed(self) -> None:
        self._threads[1].start()

    def _feed(self) -> None:
        self._feeder.run(self.kinds, self._stop.is_set)

    def stop(self, seconds: float) -> bool:
        """End it after its current event; False when it had to be killed."""
        self._patience_s = seconds
        self._stop.set()
        self.flight.end()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        return self._ended

    @property
    def pid(self) -> int:
        running = self.flight.running
        return running.pid if running else 0

    def steer(self, paused: bool, critical_only: bool) -> None:
        self._paused, self._critical_only = paused, critical_only
        if running := self.flight.running:
            running.steer(paused, critical_only)

    def at_work(self) -> Iterator[tuple[str, int]]:
        """The handlers of each frame in hand, and for how many ns they have been at it."""
        running, flying = self.flight.under_way()
        now = protocol.ticks_to_ns(protocol.ticks())
        for frame, since in running.inbox.marks() if running else ():
            if frame in flying:
                yield self._names(flying[frame]), now - protocol.ticks_to_ns(since)

    # --- the guard: reads outcomes, starts the process again --------------------------------------

    def _guard(self) -> None:
        try:
            self._begin()
        except OperationError as error:
            self._started = error
            return
        finally:
            self._ready.set()
        deaths = 0
        while not self._stop.is_set() and (running := self.flight.running):
            if self._read(running, _LOOK_S) or running.alive():
                continue
            while self._read(running, 0):
                pass  # what it wrote before it died
            deaths = deaths + 1 if running.lived_s() < _CALM_S else 1
            self._bury(running)
            self._restart(deaths)
        self._end()

    def _end(self) -> None:
        """On this thread: the process is killed when it ends."""
        running = self.flight.running
        if running is None:
            return
        running.inbox.close()
        late = time.monotonic() + self._patience_s
        while running.alive() and time.monotonic() < late:
            self._read(running, _LOOK_S)
        self._ended = not running.alive()
        running.kill()
        while self._read(running, 0):
            pass
        running.close()

    def _begin(self) -> None:
        running, self.kinds = start_child(self._setup, self._catalogue, self._stop)
        self.flight.began(running)
        running.steer(self._paused, self._critical_only)  # after: a change meanwhile is not missed

    def _restart(self, deaths: int) -> None:
        """At once the first time, then with longer and longer pauses."""
        while not self._stop.is_set():
            pause = 0.0 if deaths <= 1 else min(_LONGEST_PAUSE_S, 0.05 * 2**deaths)
            if self._stop.wait(pause):
                return
            try:
                self._begin()
            except OperationError as error:
                deaths += 1
                if not self._stop.is_set():
                    self._outcomes.not_started(self.lane, str(error))
            else:
                return

    def _bury(self, running: LaneChild) -> None:
        """The process is dead: whose fault was it, and what goes to the next one?"""
        how = running.how_it_ended()
        marked = {frame for frame, _ in running.inbox.marks()}
        flying = self.flight.died()
        blamed = [self._names(flying[frame]) for frame in marked if frame in flying]
        text = f"{how} in {', '.join(blamed)}" if blamed else how
        again = []
        for frame, each in flying.items():
            again += self._tried(each, text) if frame in marked else [each]
        self.flight.again(again)
        running.close()
        self._outcomes.died(self.lane, text)

    def _tried(self, frame: InFlightFrame, how: str) -> list[InFlightFrame]:
        """Each event alone, one more time; dead when that was its last."""
        again = []
        for event, sequence in frame.events:
            if event.retry_count >= event.max_retries:
                self.give_up(event, sequence, f"its process {how}")
                continue
            self._lanes.retried(self.lane, sequence, self._numbers[event.event_type])
            more = msgspec.structs.replace(event, retry_count=event.retry_count + 1)
            again.append(InFlightFrame([(more, sequence)]))
        return again

    def give_up(self, event: Event, sequence: int, why: str) -> None:
        handlers = self._setup.handlers[event.event_type]
        self._outcomes.gave_up(event, handlers[0], RemoteHandlerError(why))
        now = protocol.ticks()
        self.settle(event, sequence, False, now, now)

    def _names(self, frame: InFlightFrame) -> str:
        return ", ".join(each.name for each in self._setup.handlers[frame.events[0][0].event_type])

    # --- outcomes -------------------------------------------------------------------------------

    def _read(self, running: LaneChild, seconds: float) -> bool:
        """What the process has told; False when that was nothing."""
        found = running.outbox.pop_many(_RECORDS, seconds)
        for data in found:
            record = running.codec.read_record(data)
            if isinstance(record, protocol.FrameDone):
                self._done(record)
            elif isinstance(record, protocol.ChildPublished):
                self._said(running.codec.event(record.event))
        return bool(found)

    def _done(self, done: protocol.FrameDone) -> None:
        took_ns = protocol.ticks_to_ns(done.ended) - protocol.ticks_to_ns(done.began)
        frame = self.flight.done(done.frame, took_ns)
        dead = set()
        for letter in done.letters:
            event = frame.events[letter.place][0]
            handler = self._setup.handlers[event.event_type][letter.handler]
            self._outcomes.gave_up(event, handler, RemoteHandlerError(letter.error))
            dead.add(letter.place)
        for place in done.retried:
            event, sequence = frame.events[place]
            self._lanes.retried(self.lane, sequence, self._numbers[event.event_type])
        for place, (event, sequence) in enumerate(frame.events):
            self.settle(event, sequence, place not in dead, done.began, done.ended)

    def settle(self, event: Event, sequence: int, handled: bool, began: int, ended: int) -> None:
        self._lanes.settle_at(self.lane, sequence, not handled, began, ended)
        self._outcomes.settled(event, handled)
        self.flight.settled()

    def _said(self, event: Event) -> None:
        """Never waits: what waits for room behind it may be the very outcome that makes room."""
        nobody = EventHandler(None, "plain", f"P{self.lane}'s process")
        try:
            if not self._lanes.publish_over(event):
                lane = f"lane P{event.priority}"
                self._outcomes.gave_up(
                    event, nobody, LaneFullError(f"{lane} is full past its bound")
                )
        except EventRefusedError as error:
            self._outcomes.gave_up(event, nobody, error)
