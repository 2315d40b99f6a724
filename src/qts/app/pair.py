"""A pair of runs on the same accounts: one active, the others standing by.

A prepared run before it has its leases follows the market and the ledger, and sends nothing:

stand by ─▶ feed, bars, warm-up, positions of the ledger; nothing published, recorded or sent
take over ─▶ the stops watch the ledger's positions, from the last prices on
reconciled ─▶ exits leave, strategies get the bars of meanwhile as history, then ticks
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from qts import telemetry
from qts.brokers import AccountLease, LeaseStatus, read_lease, request_handover
from qts.config import Config
from qts.database import Database
from qts.domain import AccountKey, Bar, OperationError, RefusedError, Timeframe

if TYPE_CHECKING:
    from qts.app.trading import TradingSystem

HANDOVER_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.1
WARM_INTERVAL_S = 5.0
FOLLOW_INTERVAL_S = 1.0

log = telemetry.logger("app")

BarOfStrategy = tuple[Bar, tuple[float, ...]]


@runtime_checkable
class WarmBroker(Protocol):
    """Broker that can prepare for its first reconciliation; it only reads."""

    name: str

    async def warm_up(self) -> None: ...


def may_be_prepared(configs: Iterable[Config]) -> bool:
    """Return whether a standby can build all before the takeover.

    A paper broker belongs to who opened it last.
    """
    return not any("paper" in each.brokers.names for each in configs)


def describe_lease(lease: LeaseStatus) -> str:
    if not lease.is_held:
        return "held by no run"
    return f"epoch {lease.epoch}, held by process {lease.pid} on {lease.host}, home {lease.home}"


class StandbyLeases:
    """The leases that a standby waits for; `prepare` what takes over, if it can be."""

    def __init__(self, database: Database, leases: Sequence[AccountLease]) -> None:
        self._database = database
        self._leases = leases
        self._brokers: list[WarmBroker] = []

    async def prepare(self, trading: TradingSystem) -> None:
        """Follow the market from now on, and read what the takeover would request."""
        found = (each.broker for each in trading.accounts)
        self._brokers = [each for each in found if isinstance(each, WarmBroker)]
        trading.stand_by()
        await self._warm_up()

    async def describe(self) -> str:
        """Return the accounts and who holds them, for the operator."""
        found = [(each.key, await read_lease(self._database, each.key)) for each in self._leases]
        return "; ".join(f"{key}, {describe_lease(lease)}" for key, lease in found)

    async def take(self) -> None:
        """Wait until every lease is free, and take it; one that is free waits for the others."""
        warming = asyncio.create_task(self._keep_warm())
        try:
            for lease in self._leases:
                await lease.acquire_when_free()
                log.warning("account taken over", account=str(lease.key), epoch=lease.epoch)
        finally:
            warming.cancel()
            await asyncio.wait({warming})

    async def _keep_warm(self) -> None:
        while True:
            await asyncio.sleep(WARM_INTERVAL_S)
            await self._warm_up()

    async def _warm_up(self) -> None:
        """Let the brokers read now and then what they would request at the takeover."""
        for broker in self._brokers:
            try:
                await broker.warm_up()
            except OperationError as error:
                log.warning("fills not read; retrying", broker=broker.name, error=str(error))


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
        from qts.strategies.bars import BARS_KEPT

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


async def hand_over(database: Database, keys: Sequence[AccountKey]) -> list[LeaseStatus]:
    """Let the active run release its accounts; return who holds each of them then.

    Raise RefusedError without an active run or a standby, OperationError when it takes too long.
    """
    before = {key: await read_lease(database, key) for key in keys}
    for key, lease in before.items():
        if not lease.is_held:
            raise RefusedError(f"no run trades account {key}; start one with qts run")
        if not lease.standbys:
            raise RefusedError(
                f"no run stands by for account {key}; start one with qts run --standby"
            )
    for key, lease in before.items():
        await request_handover(database, key, lease.epoch)
    after: list[LeaseStatus] = []
    try:
        async with asyncio.timeout(HANDOVER_TIMEOUT_S):
            for key, lease in before.items():
                now = lease
                while now.epoch == lease.epoch or not now.is_held:
                    await asyncio.sleep(POLL_INTERVAL_S)
                    now = await read_lease(database, key)
                after.append(now)
    except TimeoutError:
        raise OperationError(
            f"the active run did not hand over within {HANDOVER_TIMEOUT_S:g} s; see its log"
        ) from None
    return after
