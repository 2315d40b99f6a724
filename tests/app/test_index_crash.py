"""An index that crashes in the simulator: the volatility rules of a whole run act on it."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from qts.app.trading import TradingSystem
from qts.config import Config
from qts.domain import SystemClock, Tick
from qts.embedded import Home
from qts.risk import SafetyState
from qts.verify.order_latency import ENTRY_PRICE, open_sandbox
from tests.outbox.kit import until

pytestmark = pytest.mark.timeout(300)

PATIENCE_S = 60.0
SYMBOL = "900001"  # not of the simulator: its price stands still
SOLD = "SELECT count(*) FROM paper_order WHERE symbol = $1 AND side = 'SELL'"


def fact(check: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def checked() -> bool:
        return check()

    return checked


def bought(trading: TradingSystem) -> bool:
    now = SystemClock().now().timestamp()
    trading.accounts[0].ticks(Tick(SYMBOL, ENTRY_PRICE, 1.0, ENTRY_PRICE - 10, ENTRY_PRICE, now))
    return SYMBOL in trading.accounts[0].portfolio.positions


def crash(url: str) -> None:
    body = msgspec.json.encode({"what": "index", "symbol": "0001", "percent": -8.5, "over_s": 2})
    urllib.request.urlopen(f"{url}/_control/market", body, timeout=10).close()  # noqa: S310 - our own child


async def test_a_crash_of_the_index_sells_everything_and_ends_trading(tmp_path: Path) -> None:
    config = msgspec.convert(
        {
            "simulator": {"symbols": 20, "scan_s": 5.0, "speed": 1.0},
            "feed": {"index_interval_s": 1.0},
            "pipeline": {"strategies": ["qts.verify.order_latency:EntryProbe"]},
        },
        Config,
    )
    async with open_sandbox(Home.at(tmp_path / "home"), config, SystemClock()) as trading:
        await until(fact(trading.accounts[0].reconciler.is_reconciled), PATIENCE_S)
        await until(fact(lambda: bought(trading)), PATIENCE_S)
        await until(fact(lambda: len(trading.accounts[0].market.status().indices) == 3), PATIENCE_S)
        assert trading.accounts[0].monitor.safety.state is SafetyState.NORMAL
        url = trading.accounts[0].config.venues.kis.url
        assert url is not None
        await asyncio.to_thread(crash, url)
        locked = fact(lambda: trading.accounts[0].monitor.safety.state is SafetyState.LOCKDOWN)
        await until(locked, PATIENCE_S)
        assert trading.accounts[0].monitor.safety.code == "FS104"
        await until(fact(lambda: SYMBOL not in trading.accounts[0].portfolio.positions), PATIENCE_S)
        assert await trading.database.fetchval(SOLD, SYMBOL) >= 1
        assert trading.accounts[0].pipeline.suspension is not None
        assert trading.accounts[0].market.status().realised_volatility >= 0.08
