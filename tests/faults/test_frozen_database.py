"""A database that hangs holds up orders, and neither prices nor stops."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from qts.app.trading import TradingSystem
from qts.config import Config
from qts.domain import SystemClock, Tick
from qts.embedded import Home
from qts.verify.order_latency import ENTRY_PRICE, STOP_PRICE, open_sandbox
from tests.embedded.clients import processes_in
from tests.outbox.kit import until

pytestmark = pytest.mark.timeout(300)

PATIENCE_S = 60.0
SYMBOL, OTHER = "900001", "800001"
TICKS = 2_000
SOLD = "SELECT count(*) FROM paper_order WHERE symbol = $1 AND side = 'SELL'"


@contextmanager
def frozen(home: Home) -> Iterator[None]:
    """Every process of PostgreSQL stands still, as under a debugger or on a dead disk."""
    pids = processes_in(home.data)
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def fact(check: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def checked() -> bool:
        return check()

    return checked


def tick(symbol: str, price: float) -> Tick:
    return Tick(symbol, price, 1.0, price - 10, price, SystemClock().now().timestamp())


async def test_prices_and_stops_go_on_while_the_database_stands_still(tmp_path: Path) -> None:
    config = msgspec.convert(
        {
            "simulator": {"symbols": 20, "scan_s": 5.0, "speed": 1.0},
            "pipeline": {"strategies": ["qts.verify.order_latency:EntryProbe"]},
        },
        Config,
    )
    home = Home.at(tmp_path / "home")
    async with open_sandbox(home, config, SystemClock()) as trading:
        await until(fact(trading.accounts[0].reconciler.is_reconciled), PATIENCE_S)
        await until(fact(lambda: bought(trading)), PATIENCE_S)
        exits, lanes = trading.accounts[0].stops.exits, trading.engine.status
        handled = lanes().lanes["P1"].handled
        with frozen(home):
            trading.accounts[0].ticks(tick(SYMBOL, STOP_PRICE))
            await until(fact(lambda: exits.count == 1), PATIENCE_S)
            for number in range(TICKS):
                trading.accounts[0].ticks(tick(OTHER, 5_000.0 + number % 3))
            settled = fact(lambda: lanes().lanes["P1"].waiting == 0)
            await until(settled, PATIENCE_S)
            assert trading.accounts[0].portfolio.last_tick(OTHER)
            now = lanes().lanes["P1"]
            assert now.handled + now.dropped + now.collapsed >= handled + TICKS
            assert lanes().lanes["P0"].waiting == 0
            assert (
                SYMBOL in trading.accounts[0].portfolio.positions
            )  # its order waits for the database
        await until(fact(lambda: SYMBOL not in trading.accounts[0].portfolio.positions), PATIENCE_S)
        assert await trading.database.fetchval(SOLD, SYMBOL) == 1


def bought(trading: TradingSystem) -> bool:
    trading.accounts[0].ticks(tick(SYMBOL, ENTRY_PRICE))
    return SYMBOL in trading.accounts[0].portfolio.positions
