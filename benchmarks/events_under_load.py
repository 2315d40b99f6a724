"""P0 while four P2 tasks burn CPU in pure Python, in each engine that has priorities."""

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
_INTERVAL_S = 0.01
_TIMEOUT_S = 20.0

Send = Callable[[float], None]  # send one P0 event; the argument is when its sender was due to wake


class LoadProbe:
    """Latencies of P0 events, each from the time its sender was due to wake.

    A task that holds the interpreter also delays the sender, and that counts.
    """

    def __init__(self) -> None:
        self.spans: list[float] = []
        self.stop = threading.Event()

    def handle(self, wake: float) -> None:
        self.spans.append(time.perf_counter() - wake)

    def burn(self, requeue: Callable[[], None]) -> None:
        """Run a P2 task: 5 ms of pure Python, then requeue."""
        end = time.perf_counter() + _BURN_S
        while time.perf_counter() < end:
            sum(number * number for number in range(50))
        if not self.stop.is_set():
            requeue()


def latencies(
    run: Callable[[LoadProbe], Any], events: int, max_s: float = float("inf")
) -> list[float]:
    """Return the seconds from wake to done of P0 events, one every 10 ms or a little more.

    After `max_s` no more are sent, so an engine that delays the sender sends fewer.
    """
    probe = LoadProbe()
    sent, end = 0, time.perf_counter() + max_s
    with run(probe) as send:
        try:
            while sent < events and (time.perf_counter() < end or sent == 0):
                wake = time.perf_counter() + _INTERVAL_S
                time.sleep(_INTERVAL_S)
                send(wake)
                sent += 1
            _wait(lambda: len(probe.spans) >= sent, f"{sent} P0 events")
        finally:
            probe.stop.set()
    if len(probe.spans) != sent:
        raise OperationError(f"of {sent} P0 events {len(probe.spans)} were handled")
    return probe.spans


@contextmanager
def ours(probe: LoadProbe) -> Iterator[Send]:
    engine = EventEngine()

    def burn(event: Event) -> None:
        probe.burn(lambda: engine.publish(event))

    engine.on("FILL_CONFIRMED", lambda event: probe.handle(event.payload.filled_time))
    engine.on("STRATEGY_EVALUATE", burn)
    engine.degrade(DegradationLevel.NORMAL)  # do not pause P2 under load
    for number in range(_BURNERS):
        task = p.StrategyEvaluate(strategy_type=f"S{number}")
        engine.publish(engine.new_event("STRATEGY_EVALUATE", task, "bench"))
    fill = partial(p.FillPayload, order_id="1", symbol="005930", filled_qty=1, filled_price=1)
    with engine:
        yield lambda wake: engine.publish(
            engine.new_event("FILL_CONFIRMED", fill(filled_time=wake), "bench")
        )
        engine.wait_drained(_TIMEOUT_S)


@contextmanager
def threads(probe: LoadProbe) -> Iterator[Send]:
    """Run queue.PriorityQueue with one thread more than there are tasks."""
    fifo: queue.PriorityQueue[tuple[int, int, Callable[[], None] | None]] = queue.PriorityQueue()
    count = itertools.count()

    def put(priority: int, task: Callable[[], None] | None) -> None:
        fifo.put((priority, next(count), task))

    def burner() -> None:
        probe.burn(lambda: put(2, burner))

    def work() -> None:
        while (task := fifo.get()[2]) is not None:
            task()

    workers = [threading.Thread(target=work) for _ in range(_BURNERS + 1)]
    for _ in range(_BURNERS):
        put(2, burner)
    for worker in workers:
        worker.start()
    try:
        yield lambda wake: put(0, partial(probe.handle, wake))
    finally:
        for _ in workers:
            put(9, None)
        for worker in workers:
            worker.join()


@contextmanager
def one_loop(probe: LoadProbe) -> Iterator[Send]:
    """Run asyncio.PriorityQueue: nothing preempts the running task."""
    loop = asyncio.new_event_loop()
    fifo: asyncio.PriorityQueue[tuple[int, int, Callable[[], None] | None]]
    fifo, count = asyncio.PriorityQueue(), itertools.count()

    def put(priority: int, task: Callable[[], None] | None) -> None:
        fifo.put_nowait((priority, next(count), task))

    def burner() -> None:
        probe.burn(lambda: put(2, burner))

    async def work() -> None:
        while (task := (await fifo.get())[2]) is not None:
            task()
            await asyncio.sleep(0)  # without it the loop would never poll for I/O

    for _ in range(_BURNERS):
        put(2, burner)
    worker = threading.Thread(target=loop.run_until_complete, args=(work(),))
    worker.start()
    try:
        yield lambda wake: _soon(loop, put, partial(probe.handle, wake))
    finally:
        loop.call_soon_threadsafe(put, 9, None)
        worker.join()
        loop.close()


def _soon(loop: asyncio.AbstractEventLoop, put: Any, task: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(put, 0, task)


def _wait(done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _TIMEOUT_S
    while not done():
        if time.monotonic() > end:
            raise OperationError(f"{what} were not handled within {_TIMEOUT_S:g} s")
        time.sleep(0.001)
