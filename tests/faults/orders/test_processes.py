"""Two workers, stopped workers, the kill switch in a burst, a polite end."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import timedelta
from pathlib import Path

from qts.domain import Secret
from tests.faults.orders.rig import STREAM, Rig, worker
from tests.outbox.kit import until


async def test_two_workers_place_every_order_once(
    made: Rig, database_url: Secret, log: Path
) -> None:
    async with worker(made, database_url, log), worker(made, database_url, log):
        await made.submit(30)
        await made.settle()
    assert await made.states() == {"ACKED": 30}
    assert len(made.entries) == 30


async def test_a_worker_stopped_beyond_its_lock_sends_nothing_late(
    made: Rig, database_url: Secret, log: Path
) -> None:
    """Stopped with orders in hand while another takes over; then it wakes up."""
    async with worker(made, database_url, log, still_s=1.0) as first:
        submitting = asyncio.create_task(made.submit(30))
        await until(lambda: _has_some(made), 60)
        os.kill(first.pid, signal.SIGSTOP)
        await submitting
        async with worker(made, database_url, log, still_s=1.0):
            await made.settle()
            placed = len(made.entries)
            await asyncio.sleep(2 * STREAM.lock_ttl_s)  # locks of the stopped worker expire
            os.kill(first.pid, signal.SIGCONT)
            assert await first.stop() == 0
            await made.settle()
    assert len(made.entries) == placed
    found = await made.states()
    assert set(found) <= {"ACKED", "ABSENT", "SUSPENDED"}
    assert sum(found.values()) == 30


async def test_a_worker_stopped_until_its_orders_expired_sends_none_of_them(
    made: Rig, database_url: Secret, log: Path
) -> None:
    """SIGSTOP with commands in hand, as a machine that sleeps; expiry is by the wall clock."""
    async with worker(made, database_url, log) as trading:
        expires_at = made.now() + timedelta(seconds=3)
        submitting = asyncio.create_task(made.submit(30, expires_at=expires_at))
        await until(lambda: _has_some(made), 60)
        os.kill(trading.pid, signal.SIGSTOP)
        await submitting
        await asyncio.sleep(max(0.0, (expires_at - made.now()).total_seconds()) + 0.1)
        before = len(made.entries)
        os.kill(trading.pid, signal.SIGCONT)
        await made.settle()
    assert len(made.entries) == before
    assert (await made.states()).get("SUSPENDED", 0) > 0


async def test_the_switch_in_a_burst_lets_nothing_new_out(
    made: Rig, database_url: Secret, log: Path
) -> None:
    """Few of 60 pending orders had left; cancels still work, and the switch survives a restart."""
    async with worker(made, database_url, log) as trading:
        submitting = asyncio.create_task(made.submit(60))
        await until(lambda: _has_some(made), 60)
        await made.kill_switch.set(False, "tests", "stop")
        in_flight = await made.database.fetchval(
            "SELECT count(*) FROM order_attempt WHERE status <> 'PREPARED'"
        )
        stopped = [each for each in await submitting if each.stopped]  # before an attempt
        await made.settle()
        assert len(made.entries) <= in_flight + STREAM.concurrency
        after = len(made.entries)
        await trading.kill()
        await trading.start()
        await trading.is_ready()
        assert (await made.submit(2))[0].stopped == "KILL_SWITCH"
        await made.settle()
    assert len(made.entries) == after
    suspended = (await made.states()).get("SUSPENDED", 0)  # after an attempt was made
    assert suspended + len(stopped) > 0


async def test_a_polite_end_under_load_leaves_nothing_unknown(
    made: Rig, database_url: Secret, log: Path
) -> None:
    async with worker(made, database_url, log) as trading:
        submitting = asyncio.create_task(made.submit(30))
        await until(lambda: _has_some(made), 60)
        assert await trading.stop() == 0
        await submitting
        found = await made.states()
        assert set(found) <= {"PREPARED", "ACKED"}
        await trading.start()
        await trading.is_ready()
        await made.settle()
    assert await made.states() == {"ACKED": 30}


async def _has_some(made: Rig) -> bool:
    return len(made.entries) >= 3
