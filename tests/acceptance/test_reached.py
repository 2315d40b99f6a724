"""A run with faults publishes, handles, raises and caches what the source promises.

What the run does not exercise is covered by tests/architecture/test_reachability.py: together
nothing is decorative.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from qts.app.trading import TradingSystem
from qts.config import Config
from qts.database import Database
from qts.domain import Secret
from qts.events.lanes import AUDIT_ACTIONS
from qts.risk import CODES
from qts.simulators import Fault, MarketConfig, UpbitKey
from tests.acceptance.venues import SimulatedAccount, simulated_account
from tests.accounts import trading_system
from tests.architecture import test_reachability as static
from tests.architecture.reachability import Sources, unreached_types
from tests.outbox.kit import until

PATIENCE_S = 90.0
MARKET = MarketConfig(symbols=20, surges_per_hour=0.0, suspended=0, always_open=True)
# Of every run that trades.
TYPES = {
    "PRICE_TICK",
    "STRATEGY_EVALUATE",
    "ETEDA_CYCLE_START",
    "EXTRACT_COMPLETE",
    "TRANSFORM_COMPLETE",
    "SIGNAL_GENERATED",
    "STRATEGY_SIGNAL",
    "ORDER_DECISION",
    "PORTFOLIO_EVALUATE",
    "RISK_EVALUATE",
    "ORDER_SENT",
    "FILL_CONFIRMED",
    "POSITION_UPDATE",
    "BROKER_DISCONNECT",
}
STREAMS = {"everbit.trade.command", "everbit.trade.exit", "everbit.trade.event"}
REGIONS = {"price", "position", "risk", "order"}
CODES_OF_FAULTS = {"FS111"}  # the unknown outcome of an order that is not answered


class Reached:
    """What a run has reached so far."""

    def __init__(self, trading: TradingSystem) -> None:
        self._trading = trading
        self._names = [each.name for each in trading.engine.catalogue]
        self.events: dict[str, Counter[str]] = {name: Counter() for name in self._names}

    def read(self) -> None:
        for record in self._trading.engine.audit():
            action = AUDIT_ACTIONS[record["action"]]
            self.events[self._names[record["type"]]][action] += 1

    def types(self, action: str) -> set[str]:
        return {name for name, counts in self.events.items() if counts[action]}

    async def streams(self) -> set[str]:
        return await self._column("SELECT DISTINCT stream FROM outbox_event_all")

    async def codes(self) -> set[str]:
        return await self._column("SELECT DISTINCT code FROM safety_log")

    def regions(self) -> set[str]:
        kinds = self._trading.accounts[0].cache.status().kinds
        return {kind for kind, region in kinds.items() if region.hit_rate is not None}

    async def _column(self, query: str) -> set[str]:
        return {row[0] for row in await self._trading.database.fetch(query)}


@asynccontextmanager
async def opened(
    database: Database, valkey_url: Secret, folder: Path, venue: SimulatedAccount
) -> AsyncIterator[TradingSystem]:
    symbols = folder / "symbols"
    symbols.write_text("\n".join(venue.simulator.symbols()))
    key, url = UpbitKey(), venue.simulator.url
    settings: dict[str, Any] = {
        "events": {"audit_records": 1_000_000},
        "brokers": {"broker": "upbit", "send_timeout_s": 0.5},
        "feed": {"venue": "upbit", "symbols": str(symbols), "always_open": True, "record": False},
        "cache": {"prefix": "reached:", "socket_timeout_ms": 5000},
        "orders": {
            "place_timeout_s": 1,
            "absent_after_s": 4,
            "resolve_every_s": 0.5,
            "reconcile_every_s": 2,
        },
        "pipeline": {"strategies": ["tests.acceptance.turner:Turner"]},
        "venues": {
            "upbit": {
                "access_key": key.access_key,
                "secret_key": key.secret_key,
                "url": url,
                "stream_url": f"{venue.simulator.ws_url}/websocket/v1",
            }
        },
    }
    config = msgspec.convert(settings, Config, dec_hook=_decode)
    async with trading_system(config, database, folder) as trading:
        await trading.accounts[0].kill_switch.set(True, actor="test", reason="test")
        await trading.accounts[0].kill_switch.set(
            True, actor="test", reason="test", strategy="turner"
        )
        async with trading.open(valkey_url):
            yield trading


def _decode(kind: type, value: Any) -> Any:
    return kind(value)


def has_handler(trading: TradingSystem, name: str) -> bool:
    return bool(trading.engine.runtime._handlers.handlers_of(name))


async def strike(venue: SimulatedAccount) -> None:
    """Cut the streams, and leave an order without an answer."""
    venue.simulator.drop_streams()
    venue.simulator.faults.add(
        Fault(kind="slow", path=venue.order_path, method="POST", count=1, seconds=3)
    )


async def missing(reached: Reached, regions: Iterable[str]) -> list[str]:
    reached.read()
    left = TYPES - reached.types("handled")
    left |= STREAMS - await reached.streams()
    left |= CODES_OF_FAULTS - await reached.codes()
    left |= set(regions) - reached.regions()
    return sorted(left)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "seconds", [0, pytest.param(60, marks=pytest.mark.soak)], ids=["until reached", "a minute"]
)
async def test_a_run_with_faults_reaches_what_the_source_promises(
    database: Database, valkey_url: Secret, tmp_path: Path, seconds: float
) -> None:
    async with (
        simulated_account("upbit", MARKET) as venue,
        opened(database, valkey_url, tmp_path, venue) as trading,
    ):
        reached = Reached(trading)

        async def has_traded() -> bool:
            reached.read()
            return "FILL_CONFIRMED" in reached.types("handled")

        await until(has_traded, PATIENCE_S)
        await strike(venue)

        async def is_reached() -> bool:
            return not await missing(reached, REGIONS)

        try:
            await until(is_reached, PATIENCE_S)
        except TimeoutError:
            pytest.fail(f"not reached: {await missing(reached, REGIONS)}")
        await asyncio.sleep(seconds)
        reached.read()
        codes = await reached.codes()
    assert [name for name in reached.types("published") if not has_handler(trading, name)] == []
    assert codes - {"CALM", "RECHECK", "RELEASE"} <= CODES.keys()
    untouched = set(static.event_types()) - reached.types("handled")
    found = unreached_types(Sources(static.SOURCE), untouched)
    assert static.beyond_allowed(found) == []
