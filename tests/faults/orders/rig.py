"""A simulated Upbit, a database, and a trading worker in a separate process, restarted when it
dies. Results are checked against the records of the simulator."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec

from qts.brokers import open_account
from qts.database import Database
from qts.domain import (
    TICK_TABLES,
    IntentType,
    OperationError,
    OrderType,
    Secret,
    Side,
    SystemClock,
)
from qts.orders import OrderManager, OrdersConfig, SubmitResult
from qts.outbox import TRADE_COMMAND, TRADE_EXIT, OutboxConfig, PostgresBus, StreamConfig
from qts.risk import KillSwitch, OrderProposal
from qts.risk.proposal import approve
from qts.simulators import Fault, MarketConfig, UpbitSimulator, UpbitSimulatorConfig
from tests.accounts import UPBIT
from tests.faults.orders.program import WorkerJob

ROOT = Path(__file__).parents[3]
COIN = Decimal(10**8)
QUICK = OrdersConfig(
    place_timeout_s=1.0,
    send_within_s=0.5,
    absent_after_s=2.0,
    resolve_every_s=0.1,
    reconcile_every_s=1.0,
    throttle_base_s=0.05,
)
STREAM = StreamConfig(
    ordered=True,
    lock_ttl_s=1.0,
    handler_timeout_s=10.0,
    backoff_base_s=0.05,
    backoff_max_s=0.5,
    poll_max_s=0.2,
)


class Worker:
    """The trading process; it can be started several times."""

    def __init__(self, job: WorkerJob, log: Path) -> None:
        self.job = job
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self.starts = 0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self, die_at: str = "") -> None:
        """Start the process, to be killed at the failpoint `die_at`."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.faults.orders.program",
                msgspec.json.encode(self.job).decode(),
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                cwd=ROOT,
                env={**os.environ, "QTS_DIE_AT": die_at},
            )
        self.starts += 1

    async def is_ready(self) -> None:
        """Wait until it has reconciled."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(60):
                line = await self._process.stdout.readline()
        assert line == b"ready\n", self._log.read_text()[-3000:] or "the log is empty"

    async def dies(self, limit_s: float = 60) -> None:
        """Wait until it has killed itself at its failpoint."""
        assert self._process is not None
        async with asyncio.timeout(limit_s):
            code = await self._process.wait()
        assert code == -signal.SIGKILL, self._log.read_text()[-3000:]

    async def kill(self) -> None:
        """End it at once, if it runs."""
        if self._process is not None and self._process.returncode is None:
            # A forked process starts its session a moment after it was forked.
            group = os.getpgid(self._process.pid) == self._process.pid
            (os.killpg if group else os.kill)(self._process.pid, signal.SIGKILL)
            await self._process.wait()

    async def stop(self) -> int:
        assert self._process is not None
        self._process.terminate()
        async with asyncio.timeout(60):
            return await self._process.wait()


class Rig:
    def __init__(self, simulator: UpbitSimulator, database: Database, bus: PostgresBus) -> None:
        self.simulator, self.database, self.bus = simulator, database, bus
        self.kill_switch = KillSwitch(database, UPBIT)
        self.clock = SystemClock()
        self.manager = OrderManager(database, bus, UPBIT, None)
        self.submitted: list[SubmitResult] = []
        self.symbols = simulator.symbols()

    # Actions

    def fault(self, kind: str, **more: Any) -> None:
        values = {"kind": kind, "path": "/v1/orders", "method": "POST", **more}
        self.simulator.faults.add(msgspec.convert(values, Fault))

    async def submit(self, count: int = 1, **more: Any) -> list[SubmitResult]:
        """Buys that reach into the book, over several markets."""
        made = []
        for _ in range(count):
            order = {"symbol": self.symbols[len(self.submitted) % 5], **more}
            made.append(await self.manager.submit(approve(self.proposal(**order), self.now())))
            self.submitted.append(made[-1])
        return made

    def proposal(self, symbol: str, **more: Any) -> OrderProposal:
        self.simulator.catch_up()
        index = self.simulator.market.index[symbol]
        ask = Decimal(self.simulator.market.book(index).asks[2].price) / COIN
        price = ask + TICK_TABLES["upbit-krw"].size(ask)
        values: dict[str, Any] = {
            "strategy_key": "faults",
            "symbol": symbol,
            "side": Side.BUY,
            "type": OrderType.LIMIT,
            "quantity": (Decimal(20_000) / price).quantize(Decimal("0.00000001")),
            "price": price - price % TICK_TABLES["upbit-krw"].size(price),
            "intent_type": IntentType.ENTRY,
            "signal_id": uuid4(),
            "decided_at": self.now(),
            "expires_at": self.now() + timedelta(seconds=60),
            **more,
        }
        return OrderProposal(**values)

    def now(self) -> Any:
        return self.clock.now()

    # Checks

    async def until_stored(self, count: int) -> None:
        """Wait until the process has stored this many orders."""
        async with asyncio.timeout(60):
            while await self.database.fetchval("SELECT count(*) FROM order_intent") < count:  # noqa: ASYNC110 - another process stores them
                await asyncio.sleep(0.02)

    @property
    def entries(self) -> list[Any]:
        """Every order the simulator has taken, as it records them."""
        return list(self.simulator.orders.entries.values())

    async def attempts(self) -> dict[UUID, list[tuple[str, str]]]:
        rows = await self.database.fetch(
            "SELECT order_intent_id, status, identifier FROM order_attempt ORDER BY attempt_no"
        )
        found: dict[UUID, list[tuple[str, str]]] = {}
        for row in rows:
            found.setdefault(row["order_intent_id"], []).append((row["status"], row["identifier"]))
        return found

    async def states(self) -> dict[str, int]:
        """Return how many intents ended in each state of their last attempt.

        On a busy machine an attempt may expire before it leaves: another attempt follows.
        """
        return dict(Counter(each[-1][0] for each in (await self.attempts()).values()))

    async def settle(self, limit_s: float = 60) -> None:
        """Wait until nothing is in flight and our ledger equals the simulator's; then check."""
        wrong = ["nothing was checked"]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while wrong := [*await self._in_flight(), *await self._differences()]:  # noqa: ASYNC110 - there is no signal to wait for
                    await asyncio.sleep(0.05)
        assert not wrong, "\n".join(wrong)
        await self.check()

    async def check(self) -> None:
        """Check: at most one order for an intent, never more than its quantity, and none lost."""
        attempts = await self.attempts()
        by_identifier: dict[str, list[Any]] = {}
        for entry in self.entries:
            by_identifier.setdefault(entry.identifier, []).append(entry)
        for one in self.submitted:
            mine = attempts.get(one.intent_id, [])
            orders = [entry for _, name in mine for entry in by_identifier.get(name, [])]
            quantity = await self.database.fetchval(
                "SELECT quantity FROM order_intent WHERE id = $1", one.intent_id
            )
            filled = sum((Decimal(entry.order.filled) / COIN for entry in orders), Decimal(0))
            assert len(orders) <= 1, f"{one} was ordered {len(orders)} times"
            assert filled <= quantity
            assert bool(orders) == any(state == "ACKED" for state, _ in mine), (one, mine)
        known = {name for each in attempts.values() for _, name in each}
        assert set(by_identifier) <= known, "the simulator has unknown orders"
        dead = await self._dead_letters()
        # A worker that is killed ten times over the same command is the test's doing.
        others = [each for each in dead if each.error_code != "WORKER_LOST"]
        assert not others, "\n".join(map(str, others))

    async def _in_flight(self) -> list[str]:
        rows = await self.database.fetch(
            "SELECT status, count(*) AS n FROM order_attempt "
            "WHERE status IN ('PREPARED', 'SENT', 'UNKNOWN') GROUP BY status"
        )
        waiting = await self.database.fetchval(
            "SELECT count(*) FROM outbox_event WHERE stream = ANY ($1) AND status <> 'DEAD'",
            [TRADE_COMMAND, TRADE_EXIT],
        )
        dead = await self._dead_letters() if rows and not waiting else []
        found = [f"{row['n']} are {row['status']}" for row in rows]
        found += [f"dead letter: {letter}" for letter in dead]
        return [*found, *([f"{waiting} commands wait"] if waiting else [])]

    async def _dead_letters(self) -> list[Any]:
        return [
            letter
            for stream in (TRADE_COMMAND, TRADE_EXIT)
            for letter in await self.bus.dead_letters(stream)
        ]

    async def _differences(self) -> list[str]:
        rows = await self.database.fetch("SELECT * FROM broker_order")
        here = {row["broker_order_id"]: (row["state"], row["applied"]) for row in rows}
        words = {"wait": "OPEN", "done": "FILLED", "cancel": "CANCELLED"}
        there = {
            entry.uuid: (words[entry.state], Decimal(entry.order.filled) / COIN)
            for entry in self.entries
        }
        wrong = [f"order {n}: {here.get(n)}, not {s}" for n, s in there.items() if here.get(n) != s]
        wrong += [f"order {n} is only here" for n in here if n not in there]
        held: dict[str, Decimal] = {}
        customer = next(iter(self.simulator.gateway.customers.values()))
        for index, holding in customer.account.holdings.items():
            if holding.quantity:
                code = self.simulator.market.universe.codes[index]
                held[code] = Decimal(holding.quantity) / COIN
        rows = await self.database.fetch("SELECT symbol, quantity FROM position")
        ours = {row["symbol"]: row["quantity"] for row in rows if row["quantity"]}
        return [*wrong, *([f"positions {ours}, not {held}"] if ours != held else [])]


@asynccontextmanager
async def rig(database: Database, **limits: Any) -> AsyncIterator[Rig]:
    market = MarketConfig(symbols=20, surges_per_hour=0.0, suspended=0)
    config = UpbitSimulatorConfig(
        market=market, **{"order_second": 1000, "default_second": 1000, **limits}
    )
    streams = {**OutboxConfig().streams, TRADE_COMMAND: STREAM, TRADE_EXIT: STREAM}
    async with UpbitSimulator(config) as simulator, PostgresBus.open(database, streams) as bus:
        made = Rig(simulator, database, bus)
        await open_account(database, UPBIT, is_live=False)
        await made.kill_switch.enable_unset(("faults",), "tests")
        yield made


@asynccontextmanager
async def worker(
    made: Rig,
    url: Secret,
    log: Path,
    die_at: str = "",
    config: OrdersConfig = QUICK,
    still_s: float = 5.0,
    orders_per_second: int = 100,
) -> AsyncIterator[Worker]:
    """Yield a worker that is ready; it is killed at the end."""
    job = job_of(made, url, config, still_s, orders_per_second)
    async with idle_worker(job, log) as trading:
        await trading.start(die_at)
        await trading.is_ready()
        yield trading


def job_of(
    made: Rig,
    url: Secret,
    config: OrdersConfig = QUICK,
    still_s: float = 5.0,
    orders_per_second: int = 100,
) -> WorkerJob:
    key = made.simulator.config.keys[0]
    return WorkerJob(
        database=url.reveal(),
        url=made.simulator.url,
        ws_url=made.simulator.ws_url,
        access_key=key.access_key,
        secret_key=key.secret_key,
        config=config,
        stream=STREAM,
        still_s=still_s,
        orders_per_second=orders_per_second,
    )


@asynccontextmanager
async def idle_worker(job: WorkerJob, log: Path) -> AsyncIterator[Worker]:
    """Yield a worker that is not started yet; it is killed at the end."""
    trading = Worker(job, log)
    try:
        yield trading
    finally:
        await trading.kill()


async def submit_for_sure(made: Rig, count: int) -> None:
    """Submit each order, and again after an error, until it is accepted."""
    for number in range(count):
        order = approve(made.proposal(made.symbols[number % 5]), made.now())
        while True:
            try:
                made.submitted.append(await made.manager.submit(order))
            except OperationError:
                await asyncio.sleep(0.02)
            else:
                break


async def is_logged(log: Path, words: str) -> bool:
    """Return whether the log of the worker contains the words."""
    return words in await asyncio.to_thread(log.read_text)
