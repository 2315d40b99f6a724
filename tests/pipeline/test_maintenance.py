"""Periodic tasks of a run: how a FAIL ends, and clocks that differ."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from email.utils import format_datetime
from typing import Any, cast

import pytest

from qts.brokers import open_account
from qts.database import Database
from qts.domain import ManualClock
from qts.pipeline.engine import (
    CLOCK_CHECK_INTERVAL_S,
    RECOVERY_INTERVAL_S,
    MaintainedParts,
    recover_fail_safe,
    watch_venue_clock,
)
from qts.risk import FailSafe, SafetyState
from qts.venues import ClockSkew
from tests.accounts import PAPER
from tests.outbox.kit import until

S = SafetyState


class Parts:
    """The parts that these tasks use; what a reconciliation finds is set by the test."""

    def __init__(self, database: Database) -> None:
        self.clock = ManualClock()
        self.fail_safe = FailSafe(database, PAPER)
        self.skew = ClockSkew("test", self.clock)
        self.is_clean = True
        self.reconciliations = 0

    async def reconciles_cleanly(self) -> bool:
        self.reconciliations += 1
        return self.is_clean

    async def state(self) -> SafetyState:
        return (await self.fail_safe.now()).state

    def measure(self, seconds: float) -> None:
        date = format_datetime(self.clock.now() + timedelta(seconds=seconds), usegmt=True)
        for _ in range(15):
            self.skew.record(date, self.clock.monotonic_ns())


@pytest.fixture
async def parts(database: Database) -> Parts:
    await open_account(database, PAPER, is_live=False)
    return Parts(database)


@asynccontextmanager
async def running(task: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    started = asyncio.create_task(task)
    try:
        yield
    finally:
        started.cancel()
        await asyncio.wait({started})


def maintained(parts: Parts) -> MaintainedParts:
    return cast("MaintainedParts", parts)


async def recheck(parts: Parts) -> None:
    """Let the recovery run once."""
    before = parts.reconciliations
    await parts.clock.advance(RECOVERY_INTERVAL_S)

    async def has_run() -> bool:
        return parts.reconciliations > before

    await until(has_run)


async def test_a_fail_stays_while_positions_differ(parts: Parts) -> None:
    await parts.fail_safe.trip("FS040", "three rejections")
    parts.is_clean = False
    async with running(recover_fail_safe(maintained(parts))):
        await asyncio.sleep(0)
        for _ in range(3):
            await recheck(parts)
            assert await parts.state() is S.FAIL
        parts.is_clean = True
        await recheck(parts)
        await until(lambda: _is(parts, S.NORMAL))


async def test_a_code_that_needs_the_operator_is_not_rechecked(parts: Parts) -> None:
    await parts.fail_safe.trip("FS043", "order V1")
    task = recover_fail_safe(maintained(parts))
    async with running(task):
        await asyncio.sleep(0)
        await parts.clock.advance(RECOVERY_INTERVAL_S)
        assert await parts.state() is S.FAIL
    assert parts.reconciliations == 0


async def _is(parts: Parts, state: SafetyState) -> bool:
    return await parts.state() is state


async def test_clocks_that_differ_are_raised_once_per_episode(parts: Parts) -> None:
    expected = 0

    async def is_raised() -> bool:
        codes = [entry.code for entry in await parts.fail_safe.log()]
        return codes.count("FS113") == expected

    async def waits() -> bool:
        return bool(parts.clock._sleepers)

    async with running(watch_venue_clock(maintained(parts))):
        for expected in (1, 2):  # noqa: B007 - read by is_raised
            parts.measure(-3.7)
            for _ in range(3):
                await until(waits)
                await parts.clock.advance(CLOCK_CHECK_INTERVAL_S)
                await until(is_raised)
            assert await parts.state() is S.WARNING
            parts.measure(0.0)
            await until(waits)
            await parts.clock.advance(CLOCK_CHECK_INTERVAL_S)
    assert "-3.5 s ahead of ours" in (await parts.fail_safe.log())[0].message
