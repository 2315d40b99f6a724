"""A prepared run before it has its leases: it follows the market and the ledger, and sends nothing.

stand by ─▶ feed, bars, warm-up, positions of the ledger; nothing published, recorded or sent
take over ─▶ the stops watch the ledger's positions, from the last prices on
reconciled ─▶ exits leave, strategies get the bars of meanwhile as history, then ticks
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from qts import telemetry
from qts.domain import Bar, OperationError, Timeframe
from qts.strategies.bars import BARS_KEPT

if TYPE_CHECKING:
    from qts.app.trading import TradingSystem

FOLLOW_INTERVAL_S = 1.0

log = telemetry.logger("app")

BarOfStrategy = tuple[Bar, tuple[float, ...]]


class Standby:
    """What holds a trading system back until it may trade; for one event loop."""

    def __init__(self, trading: TradingSystem) -> None:
        self._trading = trading
        self._bars: dict[tuple[str, str, Timeframe], deque[BarOfStrategy]] = {}
        self.has_leases = asyncio.Event()
        trading.strategy_engine.is_paused = True
        for account in trading.accounts:
            account.ticks.is_paused = account.reconciler.is_paused = True
            account.feed.is_recorded = False

    async def follow_positions(self) -> None:
        """Let the feed price what the ledger holds, until cancelled."""
        trading = self._trading
        while not self.has_leases.is_set():
            try:
                for account in trading.accounts:
                    await account.positions.follow(trading.database, account.key)
            except OperationError as error:
                if due := telemetry.log_every(10.0, "standby-positions"):
                    log.warning("positions not read; retrying", error=str(error), **due)
            await trading.clock.sleep(FOLLOW_INTERVAL_S)

    def hold_bars(self, key: str, bars: Iterable[BarOfStrategy]) -> None:
        """Keep as many closed bars as a strategy sees of each series."""
        kept = max(BARS_KEPT, self._trading.runners[key].subscription.warm_up)
        for bar, values in bars:
            series = self._bars.setdefault((key, bar.symbol, bar.timeframe), deque(maxlen=kept))
            series.append((bar, values))

    async def take_over(self) -> None:
        """Let the stops watch from now on; exits wait for the reconciliation."""
        self.has_leases.set()
        for account in self._trading.accounts:
            account.stops.exits.hold_until(account.positions.loaded)
            account.reconciler.is_paused = False
            try:
                await account.positions.watch(account.order_database, account.key)
            except OperationError as error:  # they watch once the positions are loaded
                log.error("positions not read; stops wait", error=str(error))
            account.feed.is_recorded = True
            account.ticks.resume(account.portfolio.positions)
            log.info(
                "stops watch", account=str(account.key), positions=len(account.micro_risk.stops)
            )

    def start_strategies(self) -> None:
        """Deliver the bars that were held as history; ticks and new bars follow."""
        for key, runner in self._trading.runners.items():
            held = [each for (of, *_), bars in self._bars.items() if of == key for each in bars]
            runner.add_bars(sorted(held, key=lambda each: each[0].at), is_new=False)
        self._trading.strategy_engine.is_paused = False
