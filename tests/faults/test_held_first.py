"""A held symbol falls by 3 % in two seconds, on the limits of a real key with 2,500 symbols.

The judge is the simulator: its prices say when the stop was passed, its order list when the exit
arrived, and its windows that no limit was exceeded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from qts.app.trading import TradingSystem
from qts.config import Config
from qts.database import Database
from qts.domain import OrderType, Secret, Side
from qts.feed import Feed
from qts.risk import OrderProposal
from qts.risk.proposal import approve
from qts.simulators import KisSimulator, KisSimulatorConfig, MarketConfig
from tests.accounts import trading_system
from tests.outbox.kit import until
from tests.venues.kis import KEY

MARKET = MarketConfig(symbols=2500, surges_per_hour=0)
FULL_STOP = 0.98  # risk.stops.mae_full
MAX_EXIT_S = 3.0
PATIENCE_S = 60.0
STEP_S = 0.005
STRATEGY = "tests"


@asynccontextmanager
async def opened(
    simulator: KisSimulator, database: Database, valkey_url: Secret, folder: Path, *, stream: bool
) -> AsyncIterator[TradingSystem]:
    """A run at the simulator, with the limits of a real key."""
    symbols = folder / "symbols"
    symbols.write_text("\n".join(simulator.market.universe.codes))
    config = msgspec.convert(
        {
            "feed": {
                "symbols": str(symbols),
                "always_open": True,
                "record": False,
                "stream": stream,
            },
            "brokers": {"broker": "kis"},
            "venues": {
                "kis": {
                    "app_key": KEY.app_key,
                    "app_secret": KEY.app_secret,
                    "account": KEY.account,
                    "hts_id": KEY.hts_id,
                    "url": simulator.url,
                    "stream_url": simulator.url.replace("http", "ws"),
                    "limits": {"per_second": 18},
                }
            },
            "cache": {"prefix": "held:", "socket_timeout_ms": 5000},
            "pipeline": {"strategies": []},
        },
        Config,
        dec_hook=lambda kind, value: kind(value),
    )
    async with (
        trading_system(config, database, folder) as trading,
        trading.open(valkey_url),
    ):
        await trading.accounts[0].kill_switch.set(True, "tests")
        await trading.accounts[0].kill_switch.set(True, "tests", strategy=STRATEGY)
        await trading.accounts[0].monitor.refresh()
        yield trading


async def buy(trading: TradingSystem, symbol: str, quantity: int) -> None:
    now = trading.clock.now()
    proposal = OrderProposal(
        strategy_key=STRATEGY,
        symbol=symbol,
        side=Side.BUY,
        type=OrderType.MARKET,
        quantity=Decimal(quantity),
        signal_id=uuid4(),
        decided_at=now,
        expires_at=now + timedelta(seconds=60),
    )
    submitted = await trading.accounts[0].execution.manager.submit(approve(proposal, now))
    assert submitted.attempt_id is not None, submitted

    async def is_held() -> bool:
        held = trading.accounts[0].portfolio.positions.get(symbol)
        return held is not None and held.quantity == quantity

    await until(is_held, PATIENCE_S)


def sold(simulator: KisSimulator, symbol: str) -> int:
    """The quantity of the sales of a symbol, as the simulator accepted them."""
    return sum(
        entry.quantity
        for entry in simulator.orders.entries
        if entry.kind != "cancel"
        and entry.order.side == "sell"
        and entry.order.index == simulator.market.index[symbol]
    )


async def fall(
    simulator: KisSimulator, trading: TradingSystem, symbol: str, give_up_s: float
) -> float:
    """Return the seconds from the first trade below the stop to the last part of the exit."""
    position = trading.accounts[0].portfolio.positions[symbol]
    index = simulator.market.index[symbol]
    stop, quantity = float(position.average_price) * FULL_STOP, int(position.quantity)
    loop = asyncio.get_running_loop()
    simulator.inject("surge", symbol, {"percent": -3.0, "over_s": 2})
    passed: float | None = None
    while sold(simulator, symbol) < quantity:
        if passed is None and simulator.market.price[index] <= stop:
            passed = loop.time()
        if passed is not None and loop.time() - passed > give_up_s:
            return give_up_s
        await asyncio.sleep(STEP_S)  # the simulator's market moves by the second, on this loop
    return 0.0 if passed is None else loop.time() - passed


async def fall_often(
    database: Database, valkey_url: Secret, folder: Path, *, trials: int, stream: bool
) -> list[float]:
    """Hold one symbol after another until each has fallen; return how long its exit took."""
    took: list[float] = []
    async with (
        KisSimulator(KisSimulatorConfig(market=MARKET)) as simulator,
        opened(simulator, database, valkey_url, folder, stream=stream) as trading,
    ):
        for symbol in chosen(simulator, trials):
            await buy(trading, symbol, 10)
            took.append(await fall(simulator, trading, symbol, give_up_s=10.0))
        for meter in simulator.stats()["keys"].values():
            assert meter["refused"] == 0
            assert all(meter["worst"][name] <= limit for name, limit in meter["limits"].items())
    return took


def chosen(simulator: KisSimulator, count: int) -> Sequence[str]:
    """Symbols spread over the whole list, cheap enough to buy ten."""
    market = simulator.market
    cheap = [code for code in market.universe.codes if market.price[market.index[code]] < 100_000]
    return cheap[7 :: max(1, len(cheap) // (count + 1))][:count]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "polled"])
@pytest.mark.parametrize(
    "trials", [3, pytest.param(50, marks=(pytest.mark.soak, pytest.mark.timeout(900)))]
)
async def test_an_exit_leaves_within_three_seconds_of_the_first_trade_below_the_stop(
    trials: int, stream: bool, database: Database, valkey_url: Secret, tmp_path: Path
) -> None:
    took = await fall_often(database, valkey_url, tmp_path, trials=trials, stream=stream)
    assert len(took) == trials
    assert max(took) <= MAX_EXIT_S, sorted(took)


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_without_watching_an_exit_waits_for_the_scan(
    database: Database, valkey_url: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Feed, "watch", lambda _self, _symbols, _on_order=(): None)
    took = await fall_often(database, valkey_url, tmp_path, trials=5, stream=True)
    assert sorted(took)[2] > MAX_EXIT_S, sorted(took)
