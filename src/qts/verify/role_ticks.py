"""Ticks between roles, measured: a feed in another process, NATS, and a strategy here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from qts.domain import Instruments, OperationError, Secret, SystemClock, Tick
from qts.embedded import Home, NatsServer
from qts.events import AccountEvents, Catalogue, Event, EventEngine, EventsConfig, log_alert
from qts.events import payloads as p
from qts.outbox import NatsBusConfig
from qts.pipeline import Portfolio, RunnerHooks, StrategyRunner, TickPublisher
from qts.roles import RemoteFeed, RoleConnection
from qts.strategies import NoParams, Signal, Strategy, View
from qts.verify.isolation import read_stalls, start_stall_probe

GOAL_P99_MS = 5.0
VENUE = "verify"
WARM_UP_S = 1.0  # of ticks that do not count
DRAIN_S = 5.0
URL = "QTS_VERIFY_NATS_URL"  # in the environment: ps shows arguments


class Spans(msgspec.Struct, frozen=True):
    count: int
    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, seconds: list[float]) -> Spans:
        if not seconds:
            return cls(0, 0.0, 0.0, 0.0)
        p50, p99 = np.percentile(seconds, (50, 99)) * 1e3
        return cls(len(seconds), round(p50, 3), round(p99, 3), round(max(seconds) * 1e3, 3))


class RoleTicksReport(msgspec.Struct, frozen=True, kw_only=True):
    """Latency from the feed's tick, in ms: to the receiving role, and to on_tick of a strategy."""

    verdict: Literal["PASS", "FAIL"]
    rate_per_s: int
    seconds: float
    received_per_s: float
    frames_missed: int
    received_ms: Spans
    on_tick_ms: Spans
    machine_stall_ms: dict[str, float]  # wake-up delay of a sleeping process
    goal_p99_ms: float = GOAL_P99_MS


class _Probe(Strategy[NoParams], key="probe"):
    """Measures how old its ticks are."""

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self.ages_s: list[float] = []

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:  # noqa: ARG002 - as it is called
        self.ages_s.append(time.time() - tick.at)
        return ()


class _Receiver:
    """The tick's way through a role: portfolio, lane P1, runner, lane P2, on_tick."""

    def __init__(self) -> None:
        self.probe = _Probe(NoParams())
        self.ages_s: list[float] = []
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
        self.ages_s.append(time.time() - tick.at)

    def _on_tick(self, event: Event) -> None:
        self._runner.tick(event.payload)

    def _wake(self, key: str) -> None:
        payload = p.StrategyEvaluate(strategy_type=key)
        self.engine.try_publish(self.engine.new_event("STRATEGY_EVALUATE", payload, "verify"))

    def reset(self) -> None:
        self.ages_s.clear()
        self.probe.ages_s.clear()


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
        received, on_tick = list(receiver.ages_s), list(receiver.probe.ages_s)
        missed = connection.status.frames_missed - missed
        stalls = await asyncio.to_thread(read_stalls, stall_probe)
        running.cancel()
        await asyncio.to_thread(receiver.engine.wait_drained, DRAIN_S)
    spans = Spans.of(on_tick)
    is_whole = not missed and len(received) >= 0.9 * rate * took_s
    return RoleTicksReport(
        verdict="PASS" if is_whole and on_tick and spans.p99 < GOAL_P99_MS else "FAIL",
        rate_per_s=rate,
        seconds=round(took_s, 2),
        received_per_s=round(len(received) / took_s, 1),
        frames_missed=missed,
        received_ms=Spans.of(received),
        on_tick_ms=spans,
        machine_stall_ms=stalls,
    )


async def _first_tick(receiver: _Receiver) -> None:
    try:
        async with asyncio.timeout(30):
            while not receiver.probe.ages_s:  # noqa: ASYNC110 - filled by a lane's thread
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise OperationError("no tick of the feed process arrived within 30 s") from None


@contextlib.asynccontextmanager
async def _source(url: Secret, rate: int) -> AsyncIterator[None]:
    """Run a feed in another process."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "qts.verify.tick_source", str(rate)),
        env={**os.environ, URL: url.reveal()},
    )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
