"""P0 while four P2 tasks burn CPU in pure Python, in each engine that knows a priority."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from qts.domain import OperationError
from qts.events import DegradationLevel, Event, EventEngine
from qts.events import payloads as p

_BURNERS = 4
_BURN_S = 0.005
_EVERY_S = 0.01
_WAIT_S = 20.0

Send = Callable[[float], None]  # one P0 event that carries the moment its sender was to wake


class Seen:
    """What the P0 handler saw: how long after its sender was to wake each event was handled.

    Whoever holds the interpreter keeps the sender, too, from its work, and that counts.
    """

    def __init__(self) -> None:
        self.spans: list[float] = []
        self.stop = threading.Event()

    def handle(self, wake: float) -> None:
        self.spans.append(time.perf_counter() - wake)

    def burn(self, again: Callable[[], None]) -> None:
        """A P2 task: 5 ms of pure Python, then back into the queue."""
        end = time.perf_counter() + _BURN_S
        while time.perf_counter() < end:
            sum(number * number for number in range(50))
        if not self.stop.is_set():
            again()


def latencies(run: Callable[[Seen], Any], events: int, most_s: float = float("inf")) -> list[float]:
    """Seconds from wake to done, of so many P0 events, one every 10 ms or a little more.

    An engine that holds even the sender up sends fewer: after `most_s` no more are sent.
    """
    seen = Seen()
    sent, end = 0, time.perf_counter() + most_s
    with run(seen) as send:
        try:
            while sent < events and (time.perf_counter() < end or sent == 0):
                wake = time.perf_counter() + _EVERY_S
                time.sleep(_EVERY_S)
                send(wake)
                sent += 1
            _wait(lambda: len(seen.spans) >= sent, f"{sent} P0 events")
        finally:
            seen.stop.set()
    if len(seen.spans) != sent:
        raise OperationError(f"of {sent} P0 events {len(seen.spans)} were handled")
    return seen.spans


@contextmanager
def ours(seen: Seen) -> Iterator[Send]:
    engine = EventEngine()

    def burn(event: Event) -> None:
        seen.burn(lambda: engine.publish(event))

    engine.on("FILL_CONFIRMED", lambda event: seen.handle(event.payload.filled_time))
    engine.on("STRATEGY_EVALUATE", burn)
    engine.degrade(DegradationLevel.NORMAL)  # P2 is not paused, whatever the load
    for number in range(_BURNERS):
        task = p.StrategyEvaluate(strategy_type=f"S{number}")
        engine.publish(engine.new_event("STRATEGY_EVALUATE", task, "bench"))
    fill = partial(p.FillPayload, order_id="1", symbol="005930", filled_qty=1, filled_price=1)
    with engine:
        yield lambda wake: engine.publish(
            engine.new_event("FILL_CONFIRMED", fill(filled_time=wake), "bench")
        )
        engine.wait_drained(_WAIT_S)


@contextmanager
def threads(seen: Seen) -> Iterator[Send]:
    """queue.PriorityQueue and as many threads as there are tasks, and one more."""
    line: queue.PriorityQueue[tuple[int, int, Callable[[], None] | None]] = queue.PriorityQueue()
    count = itertools.count()

    def put(priority: int, task: Callable[[], None] | None) -> None:
        line.put((priority, next(count), task))

    def burner() -> None:
        seen.burn(lambda: put(2, burner))

    def work() -> None:
        while (task := line.get()[2]) is not None:
            task()

    workers = [threading.Thread(target=work) for _ in range(_BURNERS + 1)]
    for _ in range(_BURNERS):
        put(2, burner)
    for worker in workers:
        worker.start()
    try:
        yield lambda wake: put(0, partial(seen.handle, wake))
    finally:
        for _ in workers:
            put(9, None)
        for worker in workers:
            worker.join()


@contextmanager
def one_loop(seen: Seen) -> Iterator[Send]:
    """asyncio.PriorityQueue: nothing overtakes the task that runs."""
    loop = asyncio.new_event_loop()
    line: asyncio.PriorityQueue[tuple[int, int, Callable[[], None] | None]]
    line, count = asyncio.PriorityQueue(), itertools.count()

    def put(priority: int, task: Callable[[], None] | None) -> None:
        line.put_nowait((priority, next(count), task))

    def burner() -> None:
        seen.burn(lambda: put(2, burner))

    async def work() -> None:
        while (task := (await line.get())[2]) is not None:
            task()
            await asyncio.sleep(0)  # without it the loop would never look outside

    for _ in range(_BURNERS):
        put(2, burner)
    worker = threading.Thread(target=loop.run_until_complete, args=(work(),))
    worker.start()
    try:
        yield lambda wake: _soon(loop, put, partial(seen.handle, wake))
    finally:
        loop.call_soon_threadsafe(put, 9, None)
        worker.join()
        loop.close()


def _soon(loop: asyncio.AbstractEventLoop, put: Any, task: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(put, 0, task)


def _wait(done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _WAIT_S
    while not done():
        if time.monotonic() > end:
            raise OperationError(f"{what} were not handled within {_WAIT_S:g} s")
        time.sleep(0.001)
