"""A drill of the whole way from a tick to an order, on real servers, beside strategies that burn.

    entry   a tick a strategy buys on            ─▶ its order leaves the process
    stop    a tick that falls through a stop     ─▶ the exit is in lane P0 ─▶ its order leaves

The books are a throw-away home's; other ticks come 500 a second meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from qts.app.servers import cache_url, database_url, own_servers
from qts.app.simulated import Simulated
from qts.app.trading import Trading
from qts.config import Config
from qts.database import Database, migrate
from qts.domain import Failed, OrderRequest, Side, SystemClock
from qts.embedded import Home
from qts.events import Event
from qts.pipeline import Signal, Strategy, Tick, View

RATE = 500  # other ticks a second
CUE, FLOOR = 10_010.0, 9_700.0
PATIENCE_S = 10.0
LANE_US, ORDER_P50_MS, ORDER_P99_MS, EXIT_P99_MS = 50.0, 10.0, 50.0, 20.0


class Cue(Strategy[Any], key="drill_cue"):
    """Buys whatever is at the price of the cue."""

    def wants(self, symbol: str) -> bool:
        return symbol.startswith("9000")

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        if tick.price == CUE and not view.holds(tick.symbol):
            yield Signal(symbol=tick.symbol, side=Side.BUY, at=tick.at)


class _Burner(Strategy[Any]):
    """Computes for as long as a cycle lasts, in plain Python."""

    def evaluate(self, view: View) -> Iterable[Signal]:  # noqa: ARG002
        end = time.monotonic() + 0.9
        while time.monotonic() < end:
            sum(range(200))
        return ()


class Burner1(_Burner, key="drill_burner_1"): ...


class Burner2(_Burner, key="drill_burner_2"): ...


class Burner3(_Burner, key="drill_burner_3"): ...


class Burner4(_Burner, key="drill_burner_4"): ...


class Spans(msgspec.Struct, frozen=True):
    count: int
    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spans:
        if not values:
            return cls(0, 0.0, 0.0, 0.0)
        p50, p99, most = np.percentile(values, (50, 99, 100))
        return cls(len(values), *(round(float(span), 3) for span in (p50, p99, most)))


class DrillReport(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Literal["PASS", "FAIL"]
    burners: int
    seconds: float
    entry_ms: Spans  # tick published to its order leaving
    lane_us: Spans  # tick published to the exit in lane P0
    exit_ms: Spans  # tick published to the exit's order leaving
    missed: list[str]  # goals that were not held


async def run_drill(seconds: float, burners: int, say: Callable[[str], None]) -> DrillReport:
    with tempfile.TemporaryDirectory(prefix="qts-drill-") as place:
        home = Home.at(Path(place) / "home")
        async with _trading(home, burners) as trading:
            say(f"{burners} strategies burn, {RATE} other ticks a second, for {seconds:g} s")
            return await _Drill(trading).run(seconds, burners)


@contextlib.asynccontextmanager
async def _trading(home: Home, burners: int) -> AsyncIterator[Trading]:
    here = "qts.app.drill"
    names = [f"{here}:Cue", *(f"{here}:Burner{n}" for n in range(1, burners + 1))]
    config = msgspec.convert(
        {
            "demo": {"symbols": 60, "scan_s": 2.0},
            "pipeline": {"strategies": names},
            "risk": {
                "limits": {
                    "orders_per_day": 1_000_000,
                    "orders_per_minute": 1_000_000,
                    "max_open_symbols": 1000,
                    "daily_loss": 1.0,
                }
            },
        },
        Config,
    )
    clock = SystemClock()
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(own_servers(home, config))
        database = await stack.enter_async_context(
            Database.open(database_url(config, home), config.database)
        )
        await migrate(database)
        simulated = Simulated(home, config.demo)
        await asyncio.to_thread(simulated.__enter__)
        stack.push_async_callback(asyncio.to_thread, simulated.__exit__)
        config = msgspec.structs.replace(
            config,
            venues=msgspec.structs.replace(config.venues, kis=simulated.kis(config.venues.kis)),
            feed=await asyncio.to_thread(simulated.feed, config.feed),
        )
        trading = Trading(config, database, clock)
        await stack.enter_async_context(trading.opened(cache_url(config, home), simulated.keys))
        yield trading


class _Drill:
    def __init__(self, trading: Trading) -> None:
        self._trading = trading
        self._left: dict[str, int] = {}
        self._lane_ns: dict[str, int] = {}
        self._published_ns = 0
        self._news = asyncio.Event()
        self._listen()

    def _listen(self) -> None:
        """Notes when orders leave and when exits are in their lane."""
        broker: Any = self._trading.broker
        micro: Any = self._trading.micro
        engine = self._trading.engine
        place, publish, publish_tick = broker.place, micro._publish, engine.publish

        async def placed(request: OrderRequest) -> str:
            self._left[request.symbol] = time.perf_counter_ns()
            self._news.set()
            name: str = await place(request)
            return name

        def published(name: str, payload: Any) -> None:
            publish(name, payload)
            self._lane_ns[getattr(payload, "symbol", "")] = (
                time.perf_counter_ns() - self._published_ns
            )

        def noted(event: Event) -> None:
            if event.event_type == "PRICE_TICK":
                self._published_ns = time.perf_counter_ns()
            publish_tick(event)

        broker.place, micro._publish, engine.publish = placed, published, noted

    async def run(self, seconds: float, burners: int) -> DrillReport:
        entries: list[float] = []
        lane: list[float] = []
        exits: list[float] = []
        others = asyncio.create_task(self._others())
        end = time.monotonic() + seconds
        try:
            for number in itertools.count():
                if time.monotonic() > end:
                    break
                symbol = f"9000{number % 50:02}"
                entries.append(await self._order_of(symbol, CUE) / 1e6)
                await self._until(lambda: symbol in self._trading.world.positions)  # noqa: B023
                exits.append(await self._order_of(symbol, FLOOR) / 1e6)
                lane.append(self._lane_ns[symbol] / 1e3)
                await self._until(lambda: symbol not in self._trading.world.positions)  # noqa: B023
        finally:
            others.cancel()
            await asyncio.wait({others})
        return _report(seconds, burners, Spans.of(entries), Spans.of(lane), Spans.of(exits))

    async def _order_of(self, symbol: str, price: float) -> int:
        """Publish a tick; the time until an order of its symbol leaves."""
        self._left.pop(symbol, None)
        began = time.perf_counter_ns()
        self._trading.ticks.tick(symbol, price, 1000.0, price - 10, price)
        await self._until(lambda: symbol in self._left)
        return self._left[symbol] - began

    async def _until(self, fact: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not fact():
            if time.monotonic() > end:
                raise Failed(f"the drill stands still: nothing came for {PATIENCE_S:g} s")
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.005):
                    await self._news.wait()

    async def _others(self) -> None:
        for number in itertools.count():
            for each in range(10):
                symbol = f"8000{(number * 10 + each) % 100:02}"
                self._trading.ticks.tick(symbol, 5_000.0 + 5 * (number % 3), number, 4_995, 5_000)
            await asyncio.sleep(10 / RATE)


def _report(seconds: float, burners: int, entries: Spans, lane: Spans, exits: Spans) -> DrillReport:
    goals = {
        f"tick to order p50 {entries.p50:.1f} ms, {ORDER_P50_MS:g} asked": (
            entries.p50 < ORDER_P50_MS
        ),
        f"tick to order p99 {entries.p99:.1f} ms, {ORDER_P99_MS:g} asked": (
            entries.p99 < ORDER_P99_MS
        ),
        f"stop in its lane p99 {lane.p99:.1f} us, {LANE_US:g} asked": lane.p99 < LANE_US,
        f"stop to order p99 {exits.p99:.1f} ms, {EXIT_P99_MS:g} asked": exits.p99 < EXIT_P99_MS,
    }
    missed = [text for text, held in goals.items() if not held]
    return DrillReport(
        verdict="FAIL" if missed else "PASS",
        burners=burners,
        seconds=seconds,
        entry_ms=entries,
        lane_us=lane,
        exit_ms=exits,
        missed=missed,
    )
