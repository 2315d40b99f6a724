"""Latency from a tick to an order in a sandbox, optionally beside CPU-burning strategies.

    entry   a tick that a strategy buys on       ─▶ its order is sent
    stop    a tick that falls through a stop     ─▶ the exit is in lane P0 ─▶ its order is sent
    commit  one row inserted and on disk, every few milliseconds beside the same load

An order needs at least one durable commit, so the goals are multiples of the median commit of the
same run: they hold on a fast disk and on a slow one.

CPU-burning strategies delay every strategy of their lane but no stop: beside them the measurement
submits the entries itself and reports the stops only. The first rounds are not counted (warm-up).
The sandbox, a throw-away trading system on the KIS simulator, serves other measurements too.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from qts.app import (
    AccountSettings,
    SimulatedVenue,
    TradingSystem,
    cache_url,
    create_strategies,
    database_url,
    run_account,
    start_servers,
)
from qts.brokers import AccountLease
from qts.config import Config
from qts.database import Database, migrate
from qts.domain import (
    Clock,
    OperationError,
    OrderRequest,
    OrderType,
    Side,
    SystemClock,
    Tick,
    krx_instrument,
)
from qts.embedded import Home
from qts.risk import OrderProposal
from qts.strategies import Signal, Strategy, View
from qts.verify.message_speed import LatencyStats

PROBES = [f"9000{number:02}" for number in range(50)]  # symbols that the simulator does not have
RATE = 500  # ticks per second of other symbols, meanwhile
ENTRY_PRICE = 10_010.0  # the strategy buys
DIRECT_ENTRY_PRICE = 10_020.0  # the measurement buys
STOP_PRICE = 9_700.0  # the stop sells
BURN_S = 0.4  # per second and strategy: of four, at least one burns at any time
WARM_UP_ROUNDS = 3
RETRY_INTERVAL_S = 2.0  # after which a tick without an order is published again
TIMEOUT_S = 60.0
COMMIT_PAUSE_S = 0.005  # between two commits
ORDER_PAUSE_S = 0.02  # before the tick of an order
LANE_US = 50.0


class LatencyGoals(NamedTuple):
    """Most that an order may take, in medians of a durable commit; None: not measured."""

    entry_p50: float | None
    entry_p99: float | None
    stop_p50: float | None
    stop_p99: float


ALONE = LatencyGoals(4.0, 10.0, 3.5, 9.0)
BESIDE_BURNERS = LatencyGoals(None, None, None, 15.0)
BESIDE_BURNING_PROCESSES = LatencyGoals(None, None, None, 10.0)


class EntryProbe(Strategy[Any], key="latency_probe"):
    """Strategy that buys at ENTRY_PRICE."""

    def wants(self, symbol: str) -> bool:
        return symbol in PROBES

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        if tick.price == ENTRY_PRICE and not view.quantity(tick.symbol):
            yield Signal(symbol=tick.symbol, side=Side.BUY, at=tick.at)


class _Burner(Strategy[Any]):
    """Strategy that burns CPU in pure Python in every cycle."""

    def evaluate(self, view: View) -> Iterable[Signal]:  # noqa: ARG002
        end = time.monotonic() + BURN_S
        while time.monotonic() < end:
            sum(range(200))
        return ()


class Burner1(_Burner, key="latency_burner_1"): ...


class Burner2(_Burner, key="latency_burner_2"): ...


class Burner3(_Burner, key="latency_burner_3"): ...


class Burner4(_Burner, key="latency_burner_4"): ...


class OrderLatencyReport(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Literal["PASS", "FAIL"] = "FAIL"
    burners: int
    isolated: bool  # strategies in processes
    seconds: float
    commit_ms: LatencyStats  # one durable insert
    tick_to_order_ms: LatencyStats  # tick published to order sent; none beside burners
    stop_to_order_ms: LatencyStats  # tick published to the exit's order sent
    stop_in_lane_us: LatencyStats  # tick published to the exit in lane P0
    refused: dict[str, int]  # refusals by code; the tick was published again
    missed: list[str] = []  # goals that were not met

    @property
    def goals(self) -> LatencyGoals:
        if not self.burners:
            return ALONE
        return BESIDE_BURNING_PROCESSES if self.isolated else BESIDE_BURNERS

    def in_commits(self, milliseconds: float) -> float:
        """Return a latency as a multiple of the median commit."""
        return milliseconds / self.commit_ms.p50


async def measure_order_latency(
    seconds: float, burners: int, progress: Callable[[str], None], *, isolated: bool = False
) -> OrderLatencyReport:
    """Measure for `seconds`; with `isolated`, each strategy runs in a separate process."""
    with tempfile.TemporaryDirectory(prefix="qts-verify-") as folder:
        home = Home.at(Path(folder) / "home")
        async with open_sandbox(home, _config(burners, isolated), SystemClock()) as trading:
            progress(f"{burners} burning strategies, {RATE} other ticks per second, {seconds:g} s")
            return await _Measurement(trading).run(seconds, burners, isolated)


@contextlib.asynccontextmanager
async def open_sandbox(home: Home, config: Config, clock: Clock) -> AsyncIterator[TradingSystem]:
    """Run a trading system in `home` on the KIS simulator."""
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(start_servers(home, config))
        database = await stack.enter_async_context(
            Database.open(database_url(config, home), config.database)
        )
        await migrate(database)
        simulated = SimulatedVenue(home, config.simulator)
        await asyncio.to_thread(simulated.__enter__)
        stack.push_async_callback(asyncio.to_thread, simulated.__exit__)
        config = await asyncio.to_thread(simulated.settings, config)
        strategies = create_strategies(config)
        key = run_account(config)
        lease = AccountLease(database, key, str(home.path), clock, is_live=False)
        await stack.enter_async_context(lease)
        account = AccountSettings(config, lease, simulated.keys)
        trading = TradingSystem(config, database, clock, [account], strategies)
        await stack.enter_async_context(trading.open(cache_url(config, home)))
        known = trading.accounts[0].instruments
        known.replace([*known, *map(krx_instrument, PROBES)])
        yield trading


def _config(burners: int, isolated: bool) -> Config:
    names = [f"{__name__}:Burner{n}" for n in range(1, burners + 1)]
    names = names or [f"{__name__}:{EntryProbe.__name__}"]
    limits = {
        "orders_per_day": 1_000_000,
        "orders_per_minute": 1_000_000,
        "max_open_symbols": 1000,
        "daily_loss": 1.0,
    }
    settings = {
        "simulator": {"symbols": 20, "scan_s": 5.0, "speed": 1.0},
        "pipeline": {"strategies": names, "isolated_strategies": ["*"] if isolated else []},
        "risk": {"limits": limits},
    }
    return msgspec.convert(settings, Config)


class _Measurement:
    """Rounds in which a symbol is bought on a tick and sold by its stop.

    When the gate refuses an order (its price is too old on a busy machine), the tick is published
    again and the refusal counted; only orders that were sent have a latency.
    """

    def __init__(self, trading: TradingSystem) -> None:
        self._trading = trading
        self._sent_ns: dict[str, int] = {}  # by symbol
        self._order_sent = asyncio.Event()
        self._commits: list[float] = []  # ms
        self._record_orders()

    def _record_orders(self) -> None:
        """Record when the broker is called with an order."""
        broker: Any = self._trading.accounts[0].broker
        place = broker.place

        async def place_recorded(request: OrderRequest) -> str:
            self._sent_ns[request.symbol] = time.perf_counter_ns()
            self._order_sent.set()
            order_id: str = await place(request)
            return order_id

        broker.place = place_recorded

    async def run(self, seconds: float, burners: int, isolated: bool) -> OrderLatencyReport:
        entries: list[float] = []
        exits: list[float] = []
        await self._until(self._trading.accounts[0].reconciler.is_reconciled, "reconciliation")
        stops = self._trading.accounts[0].micro_risk.stops
        load = {
            asyncio.create_task(each) for each in (self._publish_others(), self._measure_commits())
        }
        deadline = time.monotonic() + seconds
        try:
            for number in itertools.count(-WARM_UP_ROUNDS):
                if number == 0:
                    stops.take_spans()
                    self._commits.clear()
                    deadline = time.monotonic() + seconds
                if number > 0 and time.monotonic() > deadline:
                    break
                entry, exit_ = await self._round(PROBES[number % len(PROBES)], direct=burners > 0)
                if number >= 0:
                    entries += [] if burners else [entry / 1e6]
                    exits.append(exit_ / 1e6)
        finally:
            for task in load:
                task.cancel()
            ends = await asyncio.gather(*load, return_exceptions=True)
        for error in (each for each in ends if isinstance(each, Exception)):
            raise error
        report = OrderLatencyReport(
            burners=burners,
            isolated=isolated,
            seconds=seconds,
            commit_ms=LatencyStats.of(self._commits),
            tick_to_order_ms=LatencyStats.of(entries),
            stop_to_order_ms=LatencyStats.of(exits),
            stop_in_lane_us=_stats_us(stops.take_spans()),
            refused=dict(self._refusals()),
        )
        missed = _missed(report)
        return replace(report, verdict="FAIL" if missed else "PASS", missed=missed)

    async def _round(self, symbol: str, direct: bool) -> tuple[int, int]:
        """Buy and sell a symbol; return the latency of both orders in ns."""
        portfolio = self._trading.accounts[0].portfolio
        await asyncio.sleep(ORDER_PAUSE_S)
        entry = await (self._buy(symbol) if direct else self._order_latency(symbol, ENTRY_PRICE))
        await self._until(lambda: symbol in portfolio.positions, f"fill of {symbol}")
        await asyncio.sleep(ORDER_PAUSE_S)
        exit_ = await self._order_latency(symbol, STOP_PRICE)
        await self._until(lambda: symbol not in portfolio.positions, f"fill of {symbol}")
        return entry, exit_

    async def _measure_commits(self) -> None:
        connection = await self._trading.database.connect(_prepare_probe)
        try:
            while True:
                await asyncio.sleep(COMMIT_PAUSE_S)
                began = time.perf_counter_ns()
                await connection.execute(_INSERT_PROBE, began)
                self._commits.append((time.perf_counter_ns() - began) / 1e6)
        finally:
            connection.terminate()

    async def _order_latency(self, symbol: str, price: float) -> int:
        """Publish a tick; return the time in ns until an order of its symbol is sent."""
        self._sent_ns.pop(symbol, None)
        deadline, began = time.monotonic() + TIMEOUT_S, time.perf_counter_ns()
        while time.monotonic() < deadline:
            before = self._refusals().total()
            self._tick(symbol, price)
            await self._wait(
                lambda: symbol in self._sent_ns or self._refusals().total() > before,  # noqa: B023
                RETRY_INTERVAL_S,
            )
            if symbol in self._sent_ns:
                return self._sent_ns[symbol] - began
            if self._refusals().total() > before:
                began = time.perf_counter_ns()
        raise self._timeout(f"order of {symbol}")

    async def _buy(self, symbol: str) -> int:
        """Submit an entry without a strategy; return the time in ns until it was filled."""
        deadline, began = time.monotonic() + TIMEOUT_S, time.perf_counter_ns()
        while time.monotonic() < deadline:
            self._tick(symbol, DIRECT_ENTRY_PRICE)
            attempt = await self._trading.accounts[0].submitter.submit(self._proposal(symbol))
            if attempt.filled_qty:
                return time.perf_counter_ns() - began
        raise self._timeout(f"fill of {symbol}")

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
            expires_at=now + timedelta(seconds=TIMEOUT_S),
        )

    def _tick(self, symbol: str, price: float) -> None:
        now = self._trading.clock.now().timestamp()
        self._trading.accounts[0].ticks(Tick(symbol, price, 0.0, price - 10, price, now))

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        if not await self._wait(condition, TIMEOUT_S):
            raise self._timeout(what)

    async def _wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Return whether the condition became true in time; raise when a task has failed."""
        deadline = time.monotonic() + seconds
        while not condition():
            if self._trading.failed.done():
                self._trading.failed.result()
            if time.monotonic() > deadline:
                return False
            self._order_sent.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.005):
                    await self._order_sent.wait()
        return True

    def _refusals(self) -> Counter[str]:
        account = self._trading.accounts[0]
        return account.precheck.refusals + account.submitter.refusals

    def _timeout(self, what: str) -> OperationError:
        trading = self._trading
        refused = ", ".join(f"{code} {n}" for code, n in self._refusals().items())
        return OperationError(
            f"no {what} within {TIMEOUT_S:g} s; refused: {refused or 'none'};"
            f" fail-safe state: {trading.accounts[0].monitor.safety.state}"
        )

    async def _publish_others(self) -> None:
        for number in itertools.count():
            for each in range(10):
                symbol = f"8000{(number * 10 + each) % 100:02}"
                self._tick(symbol, 5_000.0 + 5 * (number % 3))
            await asyncio.sleep(10 / RATE)


def _stats_us(ns: dict[str, int]) -> LatencyStats:
    """Return, in microseconds, the time from publish() to the exit in lane P0."""
    return LatencyStats(ns["count"], *(ns[part] / 1e3 for part in ("p50", "p99", "max")))


_INSERT_PROBE = "INSERT INTO latency_probe (at_ns) VALUES ($1)"


async def _prepare_probe(connection: Any) -> None:
    await connection.execute(
        "SET synchronous_commit = on; CREATE TABLE latency_probe (at_ns bigint NOT NULL)"
    )


def _missed(report: OrderLatencyReport) -> list[str]:
    goals, lane = report.goals, report.stop_in_lane_us
    entries, exits = report.tick_to_order_ms, report.stop_to_order_ms
    missed = [
        f"{what} {value:.1f} ms = {report.in_commits(value):.1f} commits, {most:g} allowed"
        for what, value, most in (
            ("tick to order p50", entries.p50, goals.entry_p50),
            ("tick to order p99", entries.p99, goals.entry_p99),
            ("stop to order p50", exits.p50, goals.stop_p50),
            ("stop to order p99", exits.p99, goals.stop_p99),
        )
        if most is not None and report.in_commits(value) > most
    ]
    if lane.p99 >= LANE_US:
        missed.append(f"stop in its lane p99 {lane.p99:.1f} us, {LANE_US:g} allowed")
    return missed
