"""Baseline for the isolation measurement: one queue.PriorityQueue and threads."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Sequence

from qts.events import Catalogue, Event, Payload, Priority

_WORKERS = 7  # as many as the lanes have


class PriorityQueueEngine:
    """Engine on one priority queue; measures P0 from publishing to the handler's return."""

    def __init__(self) -> None:
        self._catalogue = Catalogue()
        self._queue: queue.PriorityQueue[tuple[int, int, float, Event | None]] = (
            queue.PriorityQueue()
        )
        self._order = itertools.count()
        self._handlers: dict[str, list[Callable[[Event], object]]] = {}
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(_WORKERS)]
        self.p0_ms: list[float] = []

    def on(self, name: str, handler: Callable[[Event], object]) -> None:
        self._handlers.setdefault(name, []).append(handler)

    def new_event(self, name: str, payload: Payload, source: str = "") -> Event:
        number = next(self._order)
        return self._catalogue[name].event(
            payload, event_id=str(number), timestamp=time.time(), source=source
        )

    def publish(self, event: Event) -> None:
        self._queue.put((event.priority, next(self._order), time.perf_counter(), event))

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
            self._queue.put((-1, next(self._order), 0.0, None))
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while not self._stop.is_set():
            priority, _, published, event = self._queue.get()
            if event is None:
                return
            for handler in self._handlers.get(event.event_type, ()):
                handler(event)
            if priority == Priority.P0:
                self.p0_ms.append((time.perf_counter() - published) * 1e3)
