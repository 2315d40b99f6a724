"""A standby follows the market, and evaluates nothing until it has the lease."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from qts.app import AccountSettings, TradingAccount, TradingSystem, create_strategies, run_account
from qts.app.pair import StandbyLeases
from qts.brokers import AccountLease
from qts.config import Config
from qts.database import Database
from qts.domain import Secret, SystemClock
from tests.acceptance.venues import SimulatedAccount, simulated_account
from tests.app.persistent_buyer import PersistentBuyer
from tests.faults.whole_run import MARKET
from tests.outbox.kit import until

PATIENCE_S = 60.0


def config_of(venue: SimulatedAccount, folder: Path) -> Config:
    symbols = folder / "symbols"
    symbols.write_text("\n".join(venue.simulator.symbols()))
    names = {"kis": ("app_key", "app_secret", "account", "hts_id")}
    given = venue.settings(folder)
    keys = names.get(venue.name, ("access_key", "secret_key"))
    prefix = f"QTS_VENUES__{venue.name.upper()}__"
    access = {each: given[prefix + each.upper()] for each in (*keys, "url", "stream_url")}
    return msgspec.convert(
        {
            "feed": {
                "venue": venue.name,
                "symbols": str(symbols),
                "always_open": True,
                "record": True,
                "interval_s": 1.0,
            },
            "brokers": {"broker": venue.name},
            "venues": {venue.name: access},
            "cache": {"prefix": "standby:", "socket_timeout_ms": 5000},
            "pipeline": {"strategies": ["tests.app.persistent_buyer:PersistentBuyer"]},
        },
        Config,
        dec_hook=lambda kind, value: kind(value),
    )


class Two:
    """An active run that holds a symbol, and a standby, in one process on one database."""

    def __init__(self, database: Database, config: Config, folder: Path) -> None:
        self._database, self._config, self._folder = database, config, folder
        self.active, self.active_lease = self._system("active")
        self.standby, self.standby_lease = self._system("standby")
        self.pair = StandbyLeases(database, [self.standby_lease])

    def _system(self, name: str) -> tuple[TradingSystem, AccountLease]:
        clock, home = SystemClock(), self._folder / name
        home.mkdir()
        config = msgspec.structs.replace(self._config, home=home)
        lease = AccountLease(self._database, run_account(config), name, clock, is_live=False)
        settings = AccountSettings(config, lease, home)
        strategies = create_strategies(config)
        return TradingSystem(config, self._database, clock, [settings], strategies), lease

    @property
    def account(self) -> TradingAccount:
        """The standby's."""
        return self.standby.accounts[0]

    async def symbol(self) -> str:
        """A symbol that the active run holds."""
        portfolio = self.active.accounts[0].portfolio

        async def is_held() -> bool:
            return bool(portfolio.positions)

        await until(is_held, PATIENCE_S)
        return next(iter(portfolio.positions))

    async def has_price(self, symbol: str) -> None:
        """Wait until the standby has prices and bars of the symbol, and follows its position."""
        portfolio, standby = self.account.portfolio, self.standby._standby
        assert standby is not None

        async def has() -> bool:
            bars = sum(len(bars) for (_, of, _), bars in standby._bars.items() if of == symbol)
            return symbol in portfolio.positions and bars > 1

        await until(has, PATIENCE_S)


@asynccontextmanager
async def two_runs(
    name: str, database: Database, valkey_url: Secret, folder: Path
) -> AsyncIterator[tuple[Two, SimulatedAccount]]:
    async with simulated_account(name, MARKET) as venue:
        two = Two(database, config_of(venue, folder), folder)
        async with two.active_lease, two.active.open(valkey_url):
            await two.symbol()
            async with two.standby.prepare(valkey_url):
                try:
                    await two.pair.prepare(two.standby)
                    yield two, venue
                finally:
                    await two.standby.stop()
                    await two.standby_lease.release()


def records(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.glob("record/**/*") if each.is_file())


@pytest.mark.parametrize("name", ["upbit", "kis"])
async def test_a_standby_evaluates_and_sends_nothing_until_it_has_the_lease(
    name: str, database: Database, valkey_url: Secret, tmp_path: Path
) -> None:
    async with two_runs(name, database, valkey_url, tmp_path) as (two, venue):
        symbol = await two.symbol()
        await two.has_price(symbol)
        account, orders = two.account, len(venue.orders())
        stops = account.micro_risk.stops
        assert (len(stops), account.ticks.count, two.standby.engine.wait_drained(1)) == (0, 0, True)
        assert records(tmp_path / "standby") == 0
        status = account.feed.status()
        if name == "kis":  # whose key is the active run's
            assert (status.poller.scans, status.poller.position, status.streaming) == (0, 0, False)
        assert status.poller.polls > 0
        strategy = two.standby.strategies["persistent_buyer"]
        assert isinstance(strategy, PersistentBuyer)
        assert strategy.bars_seen == []
        taking = asyncio.create_task(two.pair.take())
        await two.active.hand_over()
        async with asyncio.timeout(PATIENCE_S):
            await taking
        assert (len(stops), account.ticks.count) == (0, 0)
        starting = asyncio.create_task(two.standby.start())

        async def watches() -> bool:
            return account.ticks.count > 0

        await until(watches, PATIENCE_S)  # the first tick after the lease
        held, last = stops.position(symbol), account.portfolio.last_tick(symbol)
        assert held is not None
        assert last is not None
        assert held["last"] == last.price
        await starting
        assert account.positions.loaded.is_set()
        assert len(venue.orders()) == orders
        assert venue.holdings()[symbol] == account.portfolio.positions[symbol].quantity

        async def has_bars() -> bool:
            return any(of == symbol for of, _ in strategy.bars_seen)

        await until(has_bars, PATIENCE_S)
        known = [count for of, count in strategy.bars_seen if of == symbol]
        assert known[0] > 1  # those of the standby's time are history
        assert known[1:] == list(range(known[0] + 1, known[0] + len(known)))


async def test_an_exit_of_a_takeover_waits_for_the_reconciliation(
    database: Database, valkey_url: Secret, tmp_path: Path
) -> None:
    async with two_runs("upbit", database, valkey_url, tmp_path) as (two, venue):
        symbol = await two.symbol()
        await two.has_price(symbol)
        taking = asyncio.create_task(two.pair.take())
        await two.active.hand_over()
        await taking
        sent: list[tuple[bool, bool]] = []
        account = two.account
        submit: Any = account.submitter.submit

        async def noting(*given: Any, **named: Any) -> Any:
            sent.append((account.positions.loaded.is_set(), account.reconciler.is_reconciled()))
            return await submit(*given, **named)

        account.submitter.submit = noting  # type: ignore[method-assign]
        watch = account.positions.watch

        async def watch_and_fall(*given: Any) -> None:
            await watch(*given)
            for hit in account.micro_risk.stops.exit_all(1.0):
                account.micro_risk._fire(hit)

        account.positions.watch = watch_and_fall  # type: ignore[method-assign, assignment]
        await two.standby.start()

        async def is_sold() -> bool:
            return venue.holdings().get(symbol, Decimal(0)) == 0

        await until(is_sold, PATIENCE_S)
        assert sent == [(True, True)]


@pytest.mark.soak
@pytest.mark.parametrize(("name", "limit_s"), [("upbit", 1.5), ("kis", 2.5)])
async def test_the_prices_of_each_venue_go_on_after_a_handover(
    name: str, limit_s: float, database: Database, valkey_url: Secret, tmp_path: Path
) -> None:
    """The simulators trade once a second; a standby at KIS polls, and streams after the lease."""
    async with two_runs(name, database, valkey_url, tmp_path) as (two, _venue):
        symbol = await two.symbol()
        await two.has_price(symbol)
        seen: list[tuple[float, str]] = []
        for system in (two.active, two.standby):
            publish = system.accounts[0].events.publish

            def noting(event: Any, of: TradingSystem = system, publish: Any = publish) -> Any:
                if event.event_type == "PRICE_TICK" and event.payload.symbol == symbol:
                    seen.append((time.monotonic(), "active" if of is two.active else "standby"))
                return publish(event)

            system.accounts[0].events.publish = noting
        await until(functools.partial(_has, seen, "active"), PATIENCE_S)
        taking = asyncio.create_task(two.pair.take())
        await two.active.hand_over()
        await taking
        await two.standby.start()
        await until(functools.partial(_has, seen, "standby"), PATIENCE_S)
        last = max(at for at, who in seen if who == "active")
        first = min(at for at, who in seen if who == "standby")
        assert two.account.feed.shares_key is (name == "kis")
        print(
            f"{name}: {first - last:.2f} s between the last tick of one and the first of the other"
        )
        assert 0 < first - last < limit_s
        await until(functools.partial(_streams, two.account), PATIENCE_S)


async def _has(seen: list[tuple[float, str]], who: str) -> bool:
    return sum(each == who for _, each in seen) > 1


async def _streams(account: TradingAccount) -> bool:
    return account.feed.status().streaming
