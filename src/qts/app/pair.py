"""A pair of runs on the same accounts: one active, the others standing by."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from qts import telemetry
from qts.brokers import AccountLease, LeaseStatus, read_lease, request_handover
from qts.database import Database
from qts.domain import AccountKey, OperationError, RefusedError

if TYPE_CHECKING:
    from qts.app.trading import TradingSystem

HANDOVER_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.1
WARM_INTERVAL_S = 5.0

log = telemetry.logger("app")


@runtime_checkable
class WarmBroker(Protocol):
    """Broker that can prepare for its first reconciliation; it only reads."""

    async def warm_up(self) -> None: ...


async def describe_leases(database: Database, leases: Sequence[AccountLease]) -> str:
    """Return the accounts and who holds them, for the operator."""
    found = [(each.key, await read_lease(database, each.key)) for each in leases]
    return "; ".join(f"{key}, {describe_lease(lease)}" for key, lease in found)


def describe_lease(lease: LeaseStatus) -> str:
    if not lease.is_held:
        return "held by no run"
    return f"epoch {lease.epoch}, held by process {lease.pid} on {lease.host}, home {lease.home}"


async def stand_by(
    stack: contextlib.AsyncExitStack,
    leases: Sequence[AccountLease],
    trading: TradingSystem | None,
) -> None:
    """Wait until every lease is free, and take it; one that is free waits for the others.

    `trading` is what was prepared to take over, if it could be.
    """
    warming = asyncio.create_task(keep_warm(trading)) if trading is not None else None
    try:
        for lease in leases:
            await lease.acquire_when_free()
            stack.push_async_exit(lease)
            log.warning("account taken over", account=str(lease.key), epoch=lease.epoch)
    finally:
        if warming is not None:
            warming.cancel()
            await asyncio.wait({warming})


async def keep_warm(trading: TradingSystem) -> None:
    """Let the brokers read now and then what they would request at the takeover."""
    while True:
        await asyncio.sleep(WARM_INTERVAL_S)
        await warm_up(trading)


async def warm_up(trading: TradingSystem) -> None:
    for account in trading.accounts:
        if isinstance(account.broker, WarmBroker):
            try:
                await account.broker.warm_up()
            except OperationError as error:
                log.warning("fills not read; retrying", venue=account.venue, error=str(error))


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
