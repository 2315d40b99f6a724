"""A drill of the whole way from a tick to an order, on real servers, beside strategies that burn.

    entry   a tick that a strategy buys on       ─▶ its order leaves the process
    stop    a tick that falls through a stop     ─▶ the exit is in lane P0 ─▶ its order leaves

Beside strategies that burn, which hold up every strategy in their lane and no stop, the drill buys
by itself and measures the stops alone. The first rounds warm the servers up and are not counted.
The books are a throw-away home's; other ticks come 500 a second meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import msgspec
import numpy as np
from msgspec.structs import replace

from qts.app import TradingSystem
from qts.config import Config
from qts.domain import OperationError, OrderRequest, OrderType, Side, SystemClock, Tick
from qts.embedded import Home
from qts.risk import OrderProposal
from qts.strategies import Signal, Strategy, View
from qts.verify.sandbox import open_sandbox

RATE = 500  # other ticks a second
CUE, OWN, FLOOR = 10_010.0, 10_020.0, 9_700.0  # a strategy buys, the drill buys, the stop sells
BURN_S = 0.4  # of each second and strategy: with four of them always one burns
WARM_ROUNDS = 3  # whose statements the database has never seen before
AGAIN_S = 2.0  # without an order, the tick comes again
PATIENCE_S = 60.0
LANE_US, ORDER_P50_MS, ORDER_P99_MS, EXIT_P99_MS = 50.0, 10.0, 50.0, 20.0


class EntryProbe(Strategy[Any], key="drill_cue"):
    """Buys whatever is at the price of the cue."""

    def wants(self, symbol: str) -> bool:
        return symbol.startswith("9000")

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        if tick.price == CUE and not view.quantity(tick.symbol):
            yield Signal(symbol=tick.symbol, side=Side.BUY, at=tick.at)


class _Burner(Strategy[Any]):
    """Computes for as long as a cycle lasts, in plain Python."""

    def evaluate(self, view: View) -> Iterable[Signal]:  # noqa: ARG002
        end = time.monotonic() + BURN_S
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


class OrderLatencyReport(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Literal["PASS", "FAIL"] = "FAIL"
    burners: int
    seconds: float
    entry_ms: Spans  # tick published to its order leaving; none beside burners
    lane_us: Spans  # tick published to the exit in lane P0
    exit_ms: Spans  # tick published to the exit's order leaving
    refused: dict[str, int]  # what the gate said to cues that got old, and how often
    missed: list[str] = []  # goals that were not held


async def measure_order_latency(
    seconds: float, burners: int, say: Callable[[str], None], *, apart: bool = False
) -> OrderLatencyReport:
    """`apart`: strategies burn in processes of their own."""
    with tempfile.TemporaryDirectory(prefix="qts-drill-") as place:
        home = Home.at(Path(place) / "home")
        async with _trading(home, burners, apart) as trading:
            say(f"{burners} strategies burn, {RATE} other ticks a second, for {seconds:g} s")
            return await _Drill(trading).run(seconds, burners)


@contextlib.asynccontextmanager
async def _trading(home: Home, burners: int, apart: bool) -> AsyncIterator[TradingSystem]:
    here = "qts.verify.order_latency"
    names = [f"{here}:Burner{n}" for n in range(1, burners + 1)] or [f"{here}:Cue"]
    config = msgspec.convert(
        {
            "simulator": {"symbols": 20, "scan_s": 5.0, "speed": 1.0},
            "pipeline": {"strategies": names, "isolated_strategies": ["*"] if apart else []},
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
    async with open_sandbox(home, config, SystemClock()) as trading:
        yield trading


class _Drill:
    """One symbol after the other is bought on a cue and sold by its stop.

    A cue that the gate refuses (its price got old on a busy machine) is given again and counted as
    refused: no order of it ever leaves, so it has no span.
    """

    def __init__(self, trading: TradingSystem) -> None:
        self._trading = trading
        self._left: dict[str, int] = {}
        self._news = asyncio.Event()
        self._listen()

    def _listen(self) -> None:
        """Notes when orders leave."""
        broker: Any = self._trading.broker
        place = broker.place

        async def placed(request: OrderRequest) -> str:
            self._left[request.symbol] = time.perf_counter_ns()
            self._news.set()
            name: str = await place(request)
            return name

        broker.place = placed

    async def run(self, seconds: float, burners: int) -> OrderLatencyReport:
        entries: list[float] = []
        exits: list[float] = []
        await self._until(self._trading.reconciler.is_reconciled, "leave to trade")
        stops = self._trading.micro_risk.stops
        others = asyncio.create_task(self._others())
        end = time.monotonic() + seconds
        try:
            for number in itertools.count(-WARM_ROUNDS):
                if number == 0:
                    stops.take_spans()
                    end = time.monotonic() + seconds
                if number > 0 and time.monotonic() > end:
                    break
                enter = self._buy if burners else self._order_of
                entry, left = await self._round(f"9000{number % 50:02}", enter)
                if number >= 0:
                    entries += [] if burners else [entry / 1e6]
                    exits.append(left / 1e6)
        finally:
            others.cancel()
            await asyncio.wait({others})
        report = OrderLatencyReport(
            burners=burners,
            seconds=seconds,
            entry_ms=Spans.of(entries),
            lane_us=_in_us(stops.take_spans()),
            exit_ms=Spans.of(exits),
            refused=dict(self._trading.submitter.refusals),
        )
        missed = _missed(report)
        return replace(report, verdict="FAIL" if missed else "PASS", missed=missed)

    async def _round(
        self, symbol: str, enter: Callable[[str, float], Awaitable[int]]
    ) -> tuple[int, int]:
        """In and out again; the spans of both orders."""
        world = self._trading.portfolio
        entry = await enter(symbol, OWN if enter == self._buy else CUE)
        await self._until(lambda: symbol in world.positions, f"fill of {symbol}")
        left = await self._order_of(symbol, FLOOR)
        await self._until(lambda: symbol not in world.positions, f"fill of {symbol}")
        return entry, left

    async def _order_of(self, symbol: str, price: float) -> int:
        """Publish a tick; the time until an order of its symbol leaves."""
        self._left.pop(symbol, None)
        refusals = self._trading.submitter.refusals
        end, began = time.monotonic() + PATIENCE_S, time.perf_counter_ns()
        while time.monotonic() < end:
            before = refusals.total()
            self._tick(symbol, price)
            await self._came(lambda: symbol in self._left or refusals.total() > before, AGAIN_S)  # noqa: B023
            if symbol in self._left:
                return self._left[symbol] - began
            if refusals.total() > before:
                began = time.perf_counter_ns()
        raise self._stands_still(f"order of {symbol}")

    async def _buy(self, symbol: str, price: float) -> int:
        """Without a strategy: through the gate to the desk."""
        end, began = time.monotonic() + PATIENCE_S, time.perf_counter_ns()
        while time.monotonic() < end:
            self._tick(symbol, price)
            done = await self._trading.submitter.submit(self._proposal(symbol))
            if done.filled_qty:
                return time.perf_counter_ns() - began
        raise self._stands_still(f"fill of {symbol}")

    def _proposal(self, symbol: str) -> OrderProposal:
        now = self._trading.clock.now()
        return OrderProposal(
            strategy_key=next(iter(self._trading.runners)),
            symbol=symbol,
            side=Side.BUY,
            type=OrderType.MARKET,
            quantity=Decimal(10),
            signal_id=uuid4(),
            decided_at=now,
            expires_at=now + timedelta(seconds=PATIENCE_S),
        )

    def _tick(self, symbol: str, price: float) -> None:
        self._trading.ticks.tick(symbol, price, 1000.0, price - 10, price)

    async def _until(self, fact: Callable[[], bool], what: str) -> None:
        if not await self._came(fact, PATIENCE_S):
            raise self._stands_still(what)

    async def _came(self, fact: Callable[[], bool], seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not fact():
            if self._trading.failed.done():
                self._trading.failed.result()  # raises what ended a part of it
            if time.monotonic() > end:
                return False
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.005):
                    await self._news.wait()
        return True

    def _stands_still(self, what: str) -> OperationError:
        trading = self._trading
        refused = ", ".join(f"{code} {n}" for code, n in trading.submitter.refusals.items())
        return OperationError(
            f"the drill stands still: no {what} within {PATIENCE_S:g} s; the gate refused:"
            f" {refused or 'nothing'}; the fail-safe is at {trading.monitor.safety.state}"
        )

    async def _others(self) -> None:
        for number in itertools.count():
            for each in range(10):
                symbol = f"8000{(number * 10 + each) % 100:02}"
                self._trading.ticks.tick(symbol, 5_000.0 + 5 * (number % 3), number, 4_995, 5_000)
            await asyncio.sleep(10 / RATE)


def _in_us(spans: dict[str, int]) -> Spans:
    """Of the stops' own stamps: the call of publish, and its exit in lane P0."""
    return Spans(spans["count"], *(spans[part] / 1e3 for part in ("p50", "p99", "max")))


def _missed(report: OrderLatencyReport) -> list[str]:
    entries, lane, exits = report.entry_ms, report.lane_us, report.exit_ms
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
    return [text for text, held in goals.items() if not held]
