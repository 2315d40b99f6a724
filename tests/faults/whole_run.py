"""A real `qts run` on a simulator that outlives it, and the faults that strike both.

The judge is the simulator: its order list and its holdings.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM, Signals
from typing import Any

import asyncpg

from qts.embedded import Home
from qts.embedded.process import read_pid
from qts.simulators import Fault, MarketConfig
from tests.acceptance.runs import Run, running
from tests.acceptance.venues import SimulatedAccount, simulated_account

MARKET = MarketConfig(symbols=20, surges_per_hour=0.0, suspended=0, always_open=True)
SETTINGS = {
    "QTS_PIPELINE__STRATEGIES": "tests.acceptance.turner:Turner",
    "QTS_BROKERS__SEND_TIMEOUT_S": "1",
    "QTS_ORDERS__PLACE_TIMEOUT_S": "2",
    "QTS_ORDERS__ABSENT_AFTER_S": "6",
    "QTS_ORDERS__RESOLVE_EVERY_S": "0.5",
    "QTS_RISK__LIMITS__ORDERS_PER_DAY": "1000000",
    "QTS_RISK__LIMITS__ORDERS_PER_MINUTE": "1000000",
    "QTS_RISK__LIMITS__DAILY_LOSS": "1",
    "QTS_FEED__RECORD": "false",
}
ORDER_FAULTS = ("drop_reply", "drop_request", "slow", "unknown", "cut", "error", "limit")
FILL_FAULTS = ("lose_fills", "duplicate_fills", "reorder_fills")
PATIENCE_S = 60.0
RESTARTING = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.OperatorInterventionError,
    asyncpg.PostgresConnectionError,
)
STEP_S = 0.05  # the simulator's record and the run's database have no signal to wait for

UNRESOLVED = (
    "SELECT id, status, symbol, error_message FROM order_attempt"
    " WHERE status IN ('PREPARED', 'SENT', 'UNKNOWN')"
)
ATTEMPTS = "SELECT id, order_intent_id, status, identifier FROM order_attempt"
ORDERS = (
    "SELECT o.broker_order_id, o.symbol, o.side, o.quantity, o.applied, a.order_intent_id,"
    " a.identifier, a.status FROM broker_order o"
    " LEFT JOIN order_attempt a ON a.id = o.order_attempt_id"
)
POSITIONS = "SELECT symbol, quantity FROM position WHERE quantity <> 0"
SAFETY = "SELECT code, state_after, message FROM safety_log ORDER BY id"


class WholeRun:
    """One run after the other on one home and one account, with faults from a seed."""

    def __init__(self, venue: SimulatedAccount, folder: Path, chance: random.Random) -> None:
        self.venue, self.chance = venue, chance
        self.home = folder / "home"
        self.struck: Counter[str] = Counter()
        self._next: list[tuple[str, Callable[[], Awaitable[None]]]] = []
        self._settings = venue.settings(folder) | SETTINGS
        self._stack = AsyncExitStack()
        self.run: Run | None = None

    # The run

    async def start(self, *words: str) -> Run:
        self.run = run = self._stack.enter_context(running(self.home, *words, **self._settings))
        await asyncio.to_thread(run.until, "Ready")
        return run

    async def stop(self) -> dict[str, Any]:
        """Stop the run cleanly; return its summary."""
        assert self.run is not None
        code = await asyncio.to_thread(self.run.end, SIGTERM)
        assert code == 0, f"ended with {code}: {self.run.output}\n{self.run.errors[-8000:]}"
        return self.run.summary

    async def close(self) -> None:
        await self._stack.aclose()

    async def query(self, sql: str) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(Home.at(self.home).postgres_url().reveal(), timeout=5)
        try:
            return list(await connection.fetch(sql))
        finally:
            await connection.close()

    async def until(self, what: str, check: Callable[[], Awaitable[Any]]) -> None:
        """Wait for a condition; errors of a server that is restarting do not end the wait."""
        assert self.run is not None
        found: Any = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    assert self.run.process.poll() is None, f"ended: {self.run.errors[-8000:]}"
                    with contextlib.suppress(*RESTARTING):
                        found = await check()
                        if not found:
                            return
                    await asyncio.sleep(STEP_S)
        raise AssertionError(
            f"not {what} after {PATIENCE_S:g} s: {found}; {self.run.errors[-8000:]}"
        )

    async def trades(self, count: int) -> None:
        """Wait until the venue has taken further orders."""
        expected = len(self.venue.orders()) + count

        async def missing() -> str:
            placed = len(self.venue.orders())
            if placed >= expected:
                return ""
            safety = (await self.query(SAFETY))[-3:]
            return f"{placed} of {expected} orders, {[tuple(each) for each in safety]}"

        await self.until("trading", missing)

    # Faults

    async def strike(self) -> str:
        """Apply a random fault at a random moment and return it; nine in a row are different."""
        if not self._next:
            self._next = self.chance.sample(list(self._faults().items()), k=len(self._faults()))
        name, fault = self._next.pop()
        await asyncio.sleep(self.chance.uniform(0, 1))  # a random moment is the point
        self.struck[name] += 1
        await fault()
        return name

    def _faults(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            "run killed": self._kill_run,
            "PostgreSQL killed": self._kill_postgres,
            "Valkey killed": self._kill_valkey,
            "run stopped for a while": self._freeze_run,
            "streams cut": self._cut_streams,
            "order faulty": self._break_orders,
            "any request faulty": self._break_requests,
            "fill notices faulty": self._break_fills,
            "clock skewed": self._skew,
        }

    async def _kill_run(self) -> None:
        assert self.run is not None
        await asyncio.to_thread(self.run.end, SIGKILL)
        await self.start()

    async def _kill_postgres(self) -> None:
        await self._kill(Home.at(self.home).data / "postmaster.pid")

    async def _kill_valkey(self) -> None:
        await self._kill(Home.at(self.home).run / "valkey.pid")

    async def _kill(self, pid_file: Path) -> None:
        pid = read_pid(pid_file)
        assert pid is not None

        async def remains() -> bool:
            return read_pid(pid_file) in (pid, None)

        os.kill(pid, SIGKILL)
        await self.until("restarted", remains)

    async def _freeze_run(self) -> None:
        self._signal(SIGSTOP)
        await asyncio.sleep(self.chance.uniform(0.3, 3))
        self._signal(SIGCONT)

    def _signal(self, number: Signals) -> None:
        assert self.run is not None
        os.kill(self.run.process.pid, number)

    async def _cut_streams(self) -> None:
        self.venue.simulator.drop_streams()

    async def _break_orders(self) -> None:
        self._add_fault(ORDER_FAULTS, path=self.venue.order_path, method="POST")

    async def _break_requests(self) -> None:
        self._add_fault(ORDER_FAULTS)

    async def _break_fills(self) -> None:
        self._add_fault(FILL_FAULTS)

    def _add_fault(self, kinds: tuple[Any, ...], **where: Any) -> None:
        kind = self.chance.choice(kinds)
        count, seconds = self.chance.randint(1, 3), self.chance.uniform(0.5, 4)
        self.venue.simulator.faults.add(Fault(kind=kind, count=count, seconds=seconds, **where))

    async def _skew(self) -> None:
        self.venue.simulator.set_skew(self.chance.choice((-3.0, 3.0)))
        await asyncio.sleep(self.chance.uniform(0.5, 4))
        self.venue.simulator.set_skew(0.0)

    # The end

    async def settle(self) -> None:
        """End the faults; wait until what they left unresolved is resolved."""
        self.venue.simulator.faults.clear()
        self.venue.simulator.set_skew(0.0)
        left: set[Any] = set()

        async def collect() -> None:
            left.update(row["id"] for row in await self.query(UNRESOLVED))

        async def unresolved() -> list[Any]:
            return [tuple(row) for row in await self.query(UNRESOLVED) if row["id"] in left]

        await self.until("answering", collect)
        await self.until("resolved", unresolved)

    async def judge(self) -> list[str]:
        """Compare the ledger with the simulator's record; return what is wrong."""
        orders, wrong = self.venue.orders(), list[str]()
        attempts = await self.query(ATTEMPTS)
        rows = {row["broker_order_id"]: row for row in await self.query(ORDERS)}
        for order_id, order in orders.items():
            row = rows.get(order_id)
            if row is None or row["order_intent_id"] is None:
                wrong.append(f"{order_id} {order} is not known as ours: {row}")
                continue
            if order.client_order_id not in (None, row["identifier"]):
                wrong.append(f"{order_id} is of {order.client_order_id}, not {row['identifier']}")
            if (order.symbol, order.side, order.filled) != (
                row["symbol"],
                row["side"],
                row["applied"],
            ):
                wrong.append(f"{order_id} {order} is {row}")
        wrong += [f"{each} is only here" for each in rows if each not in orders]
        intents = Counter(row["order_intent_id"] for row in rows.values())
        wrong += [
            f"intent {each} has {count} orders" for each, count in intents.items() if count > 1
        ]
        placed = {row["identifier"] for row in rows.values()}
        for row in attempts:
            if (row["status"] == "ACKED") != (row["identifier"] in placed):
                wrong.append(f"attempt {tuple(row)} has an order: {row['identifier'] in placed}")
        wrong += [f"unresolved {tuple(row)}" for row in await self.query(UNRESOLVED)]
        ours = {row["symbol"]: row["quantity"] for row in await self.query(POSITIONS)}
        if ours != self.venue.holdings():
            wrong.append(f"positions {ours}, holdings {self.venue.holdings()}")
        return wrong


@asynccontextmanager
async def whole_run(name: str, folder: Path, seed: int) -> AsyncIterator[WholeRun]:
    async with simulated_account(name, MARKET) as venue:
        made = WholeRun(venue, folder, random.Random(seed))  # noqa: S311 - repeatable on purpose
        began = time.monotonic()
        try:
            yield made
        finally:
            await made.close()
            print(
                f"{name}: seed {seed}, {made.struck.total()} faults in"
                f" {time.monotonic() - began:.0f} s, {len(venue.orders())} orders:"
                f" {dict(made.struck)}"
            )
