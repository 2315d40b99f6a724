"""Speed of the outbox on this machine: publishing, draining and latency."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from qts.database import Database
from qts.domain import RefusedError
from qts.outbox import BACKTEST_EVENT, Delivery, Dispatcher, OutboxEvent, PostgresBus, StreamConfig

STREAM = BACKTEST_EVENT
ONE_BY_ONE = 300
LATENCY_EVENTS = 200
LATENCY_RATE = 100


class BenchResult(msgspec.Struct, frozen=True):
    """Rates in events per second; latency from publish to handler at 100 events per second."""

    events: int
    publish_single_per_s: float
    publish_batch_per_s: float
    drain_1_worker_per_s: float
    drain_2_workers_per_s: float
    latency_p50_ms: float
    latency_p99_ms: float
    python_us_per_event: float


class Noop(msgspec.Struct):
    number: int
    note: str = "a payload of about the size that an order command has"


async def measure_outbox(
    database: Database, events: int, progress: Callable[[str], None] = lambda _: None
) -> BenchResult:
    """Measure on `database`, whose stream of backtest events must be empty."""
    config = StreamConfig(batch=300)
    if await database.fetchval("SELECT count(*) FROM outbox_event WHERE stream = $1", STREAM):
        raise RefusedError(f"stream {STREAM} has events; use a database where it is empty")
    async with PostgresBus.open(database, {STREAM: config}) as bus:
        progress("publish one by one")
        single = await _publish(database, bus, ONE_BY_ONE, 1)
        await _drain(bus, ONE_BY_ONE, 1)
        rates = []
        batched, cpu_us = 0.0, 0.0
        for workers in (1, 2):
            progress(f"publish {events} in batches, drain with {workers}")
            batched = max(batched, await _publish(database, bus, events, 1000))
            before_s = time.process_time()
            rates.append(await _drain(bus, events, workers))
            if workers == 1:
                cpu_us = (time.process_time() - before_s) / events * 1e6
        progress("publish to handler")
        latencies = sorted(await _latencies(database, bus))
    return BenchResult(
        events=events,
        publish_single_per_s=single,
        publish_batch_per_s=batched,
        drain_1_worker_per_s=rates[0],
        drain_2_workers_per_s=rates[1],
        latency_p50_ms=latencies[len(latencies) // 2] * 1e3,
        latency_p99_ms=latencies[len(latencies) * 99 // 100] * 1e3,
        python_us_per_event=cpu_us,
    )


async def _publish(database: Database, bus: PostgresBus, events: int, batch: int) -> float:
    """Return events per second of the publish calls, without creating the events."""
    seconds = 0.0
    for start in range(0, events, batch):
        batched = [_event(number) for number in range(start, min(start + batch, events))]
        began = time.perf_counter()
        async with database.transaction() as tx:
            if batch == 1:
                await bus.publish(tx, batched[0])
            else:
                await bus.publish_many(tx, batched)
        seconds += time.perf_counter() - began
    return events / seconds


async def _drain(bus: PostgresBus, events: int, workers: int) -> float:
    dispatcher, left, empty = Dispatcher(), events, asyncio.Event()

    @dispatcher.on(STREAM, Noop)
    async def handle(_payload: Noop, _delivery: Delivery) -> None:
        nonlocal left
        left -= 1
        if not left:
            empty.set()

    consumers = [bus.consumer(STREAM, dispatcher) for _ in range(workers)]
    began = time.perf_counter()
    serving = [asyncio.create_task(consumer.run()) for consumer in consumers]
    await empty.wait()
    for consumer in consumers:
        consumer.stop()
    await asyncio.gather(*serving)
    return events / (time.perf_counter() - began)


async def _latencies(database: Database, bus: PostgresBus) -> list[float]:
    dispatcher, complete = Dispatcher(), asyncio.Event()
    seconds: list[float] = []
    began: dict[int, float] = {}

    @dispatcher.on(STREAM, Noop)
    async def handle(payload: Noop, _delivery: Delivery) -> None:
        seconds.append(time.perf_counter() - began[payload.number])
        if len(seconds) == LATENCY_EVENTS:
            complete.set()

    consumer = bus.consumer(STREAM, dispatcher)
    serving = asyncio.create_task(consumer.run())
    for number in range(LATENCY_EVENTS):
        await asyncio.sleep(1 / LATENCY_RATE)
        began[number] = time.perf_counter()
        async with database.transaction() as tx:
            await bus.publish(tx, _event(number))
    await complete.wait()
    consumer.stop()
    await serving
    return seconds


def _event(number: int) -> OutboxEvent:
    return OutboxEvent.of(
        STREAM, Noop(number), ("Bench", str(number % 1000)), trace_id="0" * 31 + "1"
    )
