"""Load of the isolation measurement, and the baseline engine it is compared with.

The load is a paced P0, a steady P1, floods of P2 and P3, and busy handlers.
"""

from __future__ import annotations

import itertools
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from qts.domain import LaneFullError
from qts.events import Catalogue, Event
from qts.events import payloads as p

_FLOOD_P2, _FLOOD_P3 = 10_000, 50_000
_FLOOD_INTERVAL_S = 2.0
_BLOCKED_S = 0.2  # how long a publisher waits for capacity before it looks for the stop


class LoadTarget(Protocol):
    """Publishing methods of an engine under load."""

    def new_event(self, name: str, payload: msgspec.Struct, source: str = "") -> Event: ...
    @property
    def publish(self) -> Any: ...
    @property
    def publish_many(self) -> Any: ...


class LoadGenerator:
    """Publishers on four threads that run until `stop` is set."""

    def __init__(
        self, engine: LoadTarget, stop: threading.Event, p0_per_s: float, ticks_per_s: float
    ) -> None:
        self._engine = engine
        self._stop = stop
        self._p0_per_s = p0_per_s
        self._ticks_per_s = ticks_per_s
        self.sent: list[str] = []  # ids of P0 events, in order
        self.due: list[float] = []  # when each was to be published, by the monotonic clock
        self.late_ms: list[float] = []  # delay of the publisher itself, per P0 event
        self._threads = [
            threading.Thread(target=each, daemon=True)
            for each in (self._publish_p0, self._publish_ticks, self._flood_p2, self._flood_p3)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _publish_p0(self) -> None:
        begin = time.monotonic()
        for turn in _paced(self._p0_per_s, self._stop):
            self.due.append(begin + turn / self._p0_per_s)
            self.late_ms.append((time.monotonic() - self.due[-1]) * 1e3)
            fill = p.FillPayload(
                order_id="1", symbol="005930", filled_qty=turn + 1, filled_price=1, filled_time=1
            )
            event = self._engine.new_event("FILL_CONFIRMED", fill, "verify")
            self.sent.append(event.event_id)
            self._engine.publish(event)

    def _publish_ticks(self) -> None:
        ticks = [
            self._engine.new_event("PRICE_TICK", p.PriceTick(symbol=f"{n:06}", price=1.0), "verify")
            for n in range(250)
        ]
        per_turn = max(1, round(self._ticks_per_s / 100))
        for turn in _paced(100, self._stop):
            first = turn * per_turn % len(ticks)
            self._engine.publish_many(ticks[first : first + per_turn])

    def _flood_p2(self) -> None:
        """Publish events of distinct keys, which do not collapse: the lane is full all the time."""
        engine = self._engine
        events = [
            engine.new_event(
                "STRATEGY_EVALUATE", p.StrategyEvaluate(strategy_type=f"S{n}"), "verify"
            )
            for n in range(_FLOOD_P2)
        ]
        while not self._stop.is_set():
            for event in events:
                if not self._publish_when_free(event):
                    return
            self._stop.wait(_FLOOD_INTERVAL_S)

    def _publish_when_free(self, event: Event) -> bool:
        """Publish as soon as the lane has capacity; return False when stopped before."""
        while not self._stop.is_set():
            try:
                self._engine.publish(event, _BLOCKED_S)
            except LaneFullError:
                continue
            return True
        return False

    def _flood_p3(self) -> None:
        engine = self._engine
        line = engine.new_event("LOG_WRITE", p.LogWrite(message="x"), "verify")
        report = engine.new_event("REPORT_GENERATE", p.ReportGenerate(report="x"), "verify")
        while not self._stop.is_set():
            engine.publish(report)
            for _ in range(_FLOOD_P3 // 100):
                if self._stop.is_set():
                    return
                engine.publish_many([line] * 100)
            self._stop.wait(_FLOOD_INTERVAL_S)


def _paced(per_s: float, stop: threading.Event) -> Iterator[int]:
    turn, begin = 0, time.monotonic()
    while not stop.is_set():
        yield turn
        turn += 1
        stop.wait(max(0.0, begin + turn / per_s - time.monotonic()))


SLEEP_S = 5.0
_BURN_S = 0.005
_LETTERS = "abcd"


def ignore(_event: Event) -> None:
    """Do nothing."""


def sleep(_event: Event) -> None:
    time.sleep(SLEEP_S)


class CpuBurner:
    """Handler that runs pure Python for 5 ms; threads can preempt it at the switch interval."""

    def __init__(self, letter: str) -> None:
        self.__qualname__ = f"burn_{letter}"

    def __call__(self, _event: Event) -> None:
        end = time.perf_counter() + _BURN_S
        while time.perf_counter() < end:
            sum(number * number for number in range(50))


class GilHog:
    """Handler that holds the GIL in one C call, `sorted` of `count` numbers."""

    def __init__(self, letter: str, count: int) -> None:
        self.__qualname__ = f"sort_{letter}"
        self._arguments = (letter, count)
        self._numbers = _numbers(count)

    def __call__(self, _event: Event) -> None:
        sorted(self._numbers)

    def __reduce__(self) -> tuple[Callable[..., GilHog], tuple[str, int]]:
        return GilHog, self._arguments  # the list is rebuilt after unpickling


def busy_handlers(count: int, c_call_ms: float) -> list[CpuBurner] | list[GilHog]:
    """Return P2 handlers: CPU burners, or sorters whose call takes `c_call_ms` on this machine."""
    letters = _LETTERS[:count]
    if not c_call_ms:
        return [CpuBurner(letter) for letter in letters]
    trial = _numbers(50_000)
    duration_s = min(_sort_duration_s(trial) for _ in range(3))
    size = max(1000, round(len(trial) * c_call_ms / 1000 / duration_s))
    return [GilHog(letter, size) for letter in letters]


def _numbers(count: int) -> list[float]:
    generator = random.Random(1)  # noqa: S311 - reproducible
    return [generator.random() for _ in range(count)]


def _sort_duration_s(numbers: list[float]) -> float:
    began = time.perf_counter()
    sorted(numbers)
    return time.perf_counter() - began


_WORKERS = 7  # as many as the lanes have


class PriorityQueueEngine:
    """Engine on one priority queue."""

    def __init__(self) -> None:
        self._catalogue = Catalogue()
        self._queue: queue.PriorityQueue[tuple[int, int, Event | None]] = queue.PriorityQueue()
        self._order = itertools.count()
        self._handlers: dict[str, list[Callable[[Event], object]]] = {}
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(_WORKERS)]

    def on(self, name: str, handler: Callable[[Event], object]) -> None:
        self._handlers.setdefault(name, []).append(handler)

    def new_event(self, name: str, payload: msgspec.Struct, source: str = "") -> Event:
        number = next(self._order)
        return self._catalogue[name].event(
            payload, event_id=str(number), timestamp=time.time(), source=source
        )

    def publish(self, event: Event, _timeout: float | None = None) -> None:
        self._queue.put((event.priority, next(self._order), event))

    def publish_many(self, events: Sequence[Event]) -> None:
        for event in events:
            self.publish(event)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float) -> None:
        """Stop the threads after their current event; abandon those still in it after `seconds`."""
        self._stop.set()
        for _ in self._threads:
            self._queue.put((-1, next(self._order), None))
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while not self._stop.is_set():
            *_, event = self._queue.get()
            if event is None:
                return
            for handler in self._handlers.get(event.event_type, ()):
                handler(event)
