"""What else carries events to a handler: queues of Python, vn.py's way, nautilus_trader."""

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
_IN_TURN = 1000  # events an asyncio publisher puts before it lets the loop run


def nothing(_event: object) -> None:
    """The handler of every case."""


def simple_queue(events: Sequence[Any]) -> None:
    """queue.SimpleQueue and a thread: no priorities, no bound, no figures."""
    line: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def handle() -> None:
        for event in iter(line.get, None):
            nothing(event)

    worker = threading.Thread(target=handle)
    worker.start()
    for event in events:
        line.put(event)
    line.put(None)
    worker.join()


def priority_queue(events: Sequence[Any]) -> None:
    """queue.PriorityQueue and a thread; a count keeps the order within a priority."""
    line: queue.PriorityQueue[tuple[int, int, Any]] = queue.PriorityQueue()
    count = itertools.count()

    def handle() -> None:
        while (event := line.get()[2]) is not None:
            nothing(event)

    worker = threading.Thread(target=handle)
    worker.start()
    for event in events:
        line.put((event.priority, next(count), event))
    line.put((9, next(count), None))
    worker.join()


def asyncio_priority_queue(events: Sequence[Any]) -> None:
    """asyncio.PriorityQueue: publisher and handler on one loop."""
    asyncio.run(_on_a_loop(events))


async def _on_a_loop(events: Sequence[Any]) -> None:
    line: asyncio.PriorityQueue[tuple[int, int, Any]] = asyncio.PriorityQueue()
    count = itertools.count()

    async def handle() -> None:
        while (event := (await line.get())[2]) is not None:
            nothing(event)

    worker = asyncio.create_task(handle())
    for first in range(0, len(events), _IN_TURN):
        for event in events[first : first + _IN_TURN]:
            line.put_nowait((event.priority, next(count), event))
        await asyncio.sleep(0)
    line.put_nowait((9, next(count), None))
    await worker


class QueueEngine:
    """vn.py's pattern: one queue.Queue, a thread that looks handlers up by type, and a timer."""

    def __init__(self) -> None:
        self._line: queue.Queue[Any] = queue.Queue()
        self._by_type: defaultdict[str, list[Handler]] = defaultdict(list)
        self._general: list[Handler] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._handle, self._tell_time)]

    def register(self, event_type: str, handler: Handler) -> None:
        self._by_type[event_type].append(handler)

    def put(self, event: Any) -> None:
        self._line.put(event)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._line.put(None)
        for thread in self._threads:
            thread.join()

    def _handle(self) -> None:
        while True:
            try:
                event = self._line.get(block=True, timeout=1)
            except queue.Empty:
                continue
            if event is None:
                return
            for handler in self._by_type[event.event_type] if event.event_type else ():
                handler(event)
            for handler in self._general:
                handler(event)

    def _tell_time(self) -> None:
        while not self._stop.wait(1.0):
            self._line.put(_Timer)


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
    """nautilus_trader: its message bus, and the queue of its live data engine before it."""

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
        """Handlers are called inside publish: no queue, no thread."""
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
            while engine.data_qsize():  # noqa: ASYNC110 - a foreign queue tells only its size
                await asyncio.sleep(0)
        tasks = [engine.get_cmd_queue_task(), engine.get_req_queue_task()]
        tasks += [engine.get_res_queue_task(), engine.get_data_queue_task()]
        engine.stop()
        await asyncio.gather(*tasks)


def _nautilus(module: str) -> Any:
    return importlib.import_module(f"nautilus_trader.{module}")
