"""Speed of messages: the durable outbox, and ticks from a feed in another process over NATS.

`python -m qts.verify.message_speed RATE` is the process of that feed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from qts.database import Database
from qts.domain import Instruments, OperationError, RefusedError, Secret, SystemClock, Tick
from qts.embedded import Home, NatsServer
from qts.events import AccountEvents, Catalogue, Event, EventEngine, EventsConfig, log_alert
from qts.events import payloads as p
from qts.feed import FeedStatus
from qts.outbox import (
    BACKTEST_EVENT,
    Delivery,
    Dispatcher,
    NatsBusConfig,
    OutboxEvent,
    PostgresBus,
    StreamConfig,
)
from qts.pipeline import Portfolio, RunnerHooks, StrategyRunner, TickPublisher
from qts.roles import NO_FEED_STATUS, FeedPublisher, RemoteFeed, RoleConnection
from qts.strategies import NoParams, Signal, Strategy, View
from qts.verify.isolation import read_stalls, start_stall_probe

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


GOAL_P99_MS = 5.0
VENUE = "verify"
WARM_UP_S = 1.0  # of ticks that do not count
DRAIN_S = 5.0
URL = "QTS_VERIFY_NATS_URL"  # in the environment: ps shows arguments


class LatencyStats(msgspec.Struct, frozen=True):
    count: int
    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> LatencyStats:
        if not values:
            return cls(0, 0.0, 0.0, 0.0)
        quantiles = np.percentile(values, (50, 99, 100))
        return cls(len(values), *(round(float(each), 3) for each in quantiles))


class RoleTicksReport(msgspec.Struct, frozen=True, kw_only=True):
    """Latency from the feed's tick, in ms: to the receiving role, and to on_tick of a strategy."""

    verdict: Literal["PASS", "FAIL"]
    rate_per_s: int
    seconds: float
    received_per_s: float
    frames_missed: int
    received_ms: LatencyStats
    on_tick_ms: LatencyStats
    machine_stall_ms: dict[str, float]  # wake-up delay of a sleeping process
    goal_p99_ms: float = GOAL_P99_MS


class _Probe(Strategy[NoParams], key="probe"):
    """Measures how old its ticks are."""

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self.ages_ms: list[float] = []

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:  # noqa: ARG002 - as it is called
        self.ages_ms.append((time.time() - tick.at) * 1e3)
        return ()


class _Receiver:
    """The tick's way through a role: portfolio, lane P1, runner, lane P2, on_tick."""

    def __init__(self) -> None:
        self.probe = _Probe(NoParams())
        self.ages_ms: list[float] = []
        clock = SystemClock()
        self.engine = EventEngine(EventsConfig(), Catalogue(), clock, log_alert)
        portfolio = Portfolio(clock, Instruments())
        hooks = RunnerHooks(
            portfolio.view, self._wake, lambda *_: None, asyncio.get_running_loop(), None
        )
        self._runner = StrategyRunner(self.probe, hooks)
        self.engine.on("PRICE_TICK", self._on_tick)
        self.engine.on("STRATEGY_EVALUATE", lambda _event: self._runner.run_pending())
        events = AccountEvents(self.engine, "")
        self.ticks = TickPublisher(events, portfolio, None, self._received, None, 0)

    def _received(self, tick: Tick) -> None:
        self.ages_ms.append((time.time() - tick.at) * 1e3)

    def _on_tick(self, event: Event) -> None:
        self._runner.tick(event.payload)

    def _wake(self, key: str) -> None:
        payload = p.StrategyEvaluate(strategy_type=key)
        self.engine.try_publish(self.engine.new_event("STRATEGY_EVALUATE", payload, "verify"))

    def reset(self) -> None:
        self.ages_ms.clear()
        self.probe.ages_ms.clear()


async def measure_role_ticks(
    seconds: float, rate: int, progress: Callable[[str], None] = lambda _: None
) -> RoleTicksReport:
    """Measure for so long, on a NATS server of the wheel and a feed in another process."""
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="qts-"))
        nats = NatsServer(Home.at(Path(folder) / "home"))
        await asyncio.to_thread(nats.__enter__)
        stack.push_async_callback(asyncio.to_thread, nats.__exit__, None, None, None)
        opening = RoleConnection.open(NatsBusConfig(url=nats.url), "verify")
        connection = await stack.enter_async_context(opening)
        receiver = _Receiver()
        receiver.engine.start()
        stack.push_async_callback(asyncio.to_thread, receiver.engine.stop)
        feed = RemoteFeed(connection, VENUE, None, receiver.ticks.callbacks, SystemClock())
        running = asyncio.create_task(feed.run())
        stack.callback(running.cancel)
        await stack.enter_async_context(_source(nats.url, rate))
        progress(f"{rate:,} ticks a second for {seconds:g} s")
        await _first_tick(receiver)
        await asyncio.sleep(WARM_UP_S)
        receiver.reset()
        missed, began_s = connection.status.frames_missed, time.monotonic()
        stall_probe = start_stall_probe(seconds)
        await asyncio.sleep(seconds)
        took_s = time.monotonic() - began_s
        received, on_tick = list(receiver.ages_ms), list(receiver.probe.ages_ms)
        missed = connection.status.frames_missed - missed
        stalls = await asyncio.to_thread(read_stalls, stall_probe)
        running.cancel()
        await asyncio.to_thread(receiver.engine.wait_drained, DRAIN_S)
    spans = LatencyStats.of(on_tick)
    is_whole = not missed and len(received) >= 0.9 * rate * took_s
    return RoleTicksReport(
        verdict="PASS" if is_whole and on_tick and spans.p99 < GOAL_P99_MS else "FAIL",
        rate_per_s=rate,
        seconds=round(took_s, 2),
        received_per_s=round(len(received) / took_s, 1),
        frames_missed=missed,
        received_ms=LatencyStats.of(received),
        on_tick_ms=spans,
        machine_stall_ms=stalls,
    )


async def _first_tick(receiver: _Receiver) -> None:
    try:
        async with asyncio.timeout(30):
            while not receiver.probe.ages_ms:  # noqa: ASYNC110 - filled by a lane's thread
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise OperationError("no tick of the feed process arrived within 30 s") from None


@contextlib.asynccontextmanager
async def _source(url: Secret, rate: int) -> AsyncIterator[None]:
    """Run a feed in another process."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "qts.verify.message_speed", str(rate)),
        env={**os.environ, URL: url.reveal()},
    )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


SYMBOLS = tuple(f"{number:06}" for number in range(500))
STEP_S = 0.0005


class _Feed:
    """A feed that watches nothing."""

    def watch(self, symbols: Sequence[str], on_order: Collection[str]) -> None:
        pass

    def price_age_s(self, symbol: str) -> float | None:  # noqa: ARG002 - the port
        return None

    def base_price(self, symbol: str) -> float:  # noqa: ARG002 - the port
        return 0.0

    def status(self) -> FeedStatus:
        return NO_FEED_STATUS


async def publish_ticks(url: Secret, rate: int) -> None:
    """Publish so many ticks a second until killed, each with the time at which it was made."""
    async with RoleConnection.open(NatsBusConfig(url=url), "verify feed") as connection:
        publisher = FeedPublisher(connection, VENUE)
        running = asyncio.create_task(publisher.run(_Feed()))
        made, began_s = 0, time.monotonic()
        while not running.done():
            for number in range(made, int((time.monotonic() - began_s) * rate)):
                symbol = SYMBOLS[number % len(SYMBOLS)]
                publisher.on_tick(Tick(symbol, 10_000.0 + number % 100, 1.0, at=time.time()))
                made = number + 1
            await asyncio.sleep(STEP_S)
        await running


if __name__ == "__main__":
    asyncio.run(publish_ticks(Secret(os.environ[URL]), int(sys.argv[1])))
