"""Peers of the event engine: queues of Python, vn.py's pattern, nautilus_trader."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

Handler = Callable[[Any], None]
_IN_TURN = 1000  # events that an asyncio publisher puts before it yields to the loop


def nothing(_event: object) -> None:
    """Handle an event by doing nothing; the handler of every case."""


def simple_queue(events: Sequence[Any]) -> None:
    """Run queue.SimpleQueue with a thread: no priorities, no bound, no metrics."""
    fifo: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def handle() -> None:
        for event in iter(fifo.get, None):
            nothing(event)

    worker = threading.Thread(target=handle)
    worker.start()
    for event in events:
        fifo.put(event)
    fifo.put(None)
    worker.join()


def priority_queue(events: Sequence[Any]) -> None:
    """Run queue.PriorityQueue with a thread; a count keeps the order within a priority."""
    fifo: queue.PriorityQueue[tuple[int, int, Any]] = queue.PriorityQueue()
    count = itertools.count()

    def handle() -> None:
        while (event := fifo.get()[2]) is not None:
            nothing(event)

    worker = threading.Thread(target=handle)
    worker.start()
    for event in events:
        fifo.put((event.priority, next(count), event))
    fifo.put((9, next(count), None))
    worker.join()


def asyncio_priority_queue(events: Sequence[Any]) -> None:
    """Run asyncio.PriorityQueue: publisher and handler on one loop."""
    asyncio.run(_run_asyncio(events))


async def _run_asyncio(events: Sequence[Any]) -> None:
    fifo: asyncio.PriorityQueue[tuple[int, int, Any]] = asyncio.PriorityQueue()
    count = itertools.count()

    async def handle() -> None:
        while (event := (await fifo.get())[2]) is not None:
            nothing(event)

    worker = asyncio.create_task(handle())
    for first in range(0, len(events), _IN_TURN):
        for event in events[first : first + _IN_TURN]:
            fifo.put_nowait((event.priority, next(count), event))
        await asyncio.sleep(0)
    fifo.put_nowait((9, next(count), None))
    await worker


class QueueEngine:
    """vn.py's pattern: one queue.Queue, a thread that finds handlers by type, and a timer."""

    def __init__(self) -> None:
        self._fifo: queue.Queue[Any] = queue.Queue()
        self._by_type: defaultdict[str, list[Handler]] = defaultdict(list)
        self._general: list[Handler] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._handle, self._put_timer)]

    def register(self, event_type: str, handler: Handler) -> None:
        self._by_type[event_type].append(handler)

    def put(self, event: Any) -> None:
        self._fifo.put(event)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._fifo.put(None)
        for thread in self._threads:
            thread.join()

    def _handle(self) -> None:
        while True:
            try:
                event = self._fifo.get(block=True, timeout=1)
            except queue.Empty:
                continue
            if event is None:
                return
            for handler in self._by_type[event.event_type] if event.event_type else ():
                handler(event)
            for handler in self._general:
                handler(event)

    def _put_timer(self) -> None:
        while not self._stop.wait(1.0):
            self._fifo.put(_Timer)


class _Timer:
    event_type = "TIMER"


def queue_engine(events: Sequence[Any]) -> None:
    engine = QueueEngine()
    engine.register(events[0].event_type, nothing)
    engine.start()
    for event in events:
        engine.put(event)
    engine.stop()


class Nautilus:
    """nautilus_trader: its message bus alone, and behind the queue of its live data engine."""

    def __init__(self) -> None:
        self._clock = _nautilus("common.component").LiveClock()
        names, objects = _nautilus("model.identifiers"), _nautilus("model.objects")
        self._trader = names.TraderId("BENCH-001")
        self._tick = _nautilus("model.data").TradeTick(
            names.InstrumentId.from_str("005930.KRX"),
            objects.Price.from_str("75000.00"),
            objects.Quantity.from_int(1),
            _nautilus("model.enums").AggressorSide.BUYER,
            names.TradeId("1"),
            0,
            0,
        )

    def _bus(self, topic: str) -> Any:
        bus = _nautilus("common.component").MessageBus(self._trader, self._clock)
        bus.subscribe(topic, nothing)
        return bus

    def publish(self, events: Sequence[Any]) -> None:
        """Publish on the message bus; it calls handlers inside publish, without queue or thread."""
        publish = self._bus("ticks").publish
        for event in events:
            publish("ticks", event)

    def live(self, events: Sequence[Any]) -> None:
        asyncio.run(self._live(len(events)))

    async def _live(self, count: int) -> None:
        engine = _nautilus("live.data_engine").LiveDataEngine(
            asyncio.get_running_loop(),
            self._bus("data.trades.KRX.005930"),
            _nautilus("cache.cache").Cache(),
            self._clock,
        )
        engine.start()
        for first in range(0, count, _IN_TURN):
            for _ in range(min(_IN_TURN, count - first)):
                engine.process(self._tick)
            while engine.data_qsize():  # noqa: ASYNC110 - the queue has no signal, only a size
                await asyncio.sleep(0)
        tasks = [engine.get_cmd_queue_task(), engine.get_req_queue_task()]
        tasks += [engine.get_res_queue_task(), engine.get_data_queue_task()]
        engine.stop()
        await asyncio.gather(*tasks)


def _nautilus(module: str) -> Any:
    return importlib.import_module(f"nautilus_trader.{module}")
