"""Standby and handover: what is refused, and what the operator sees."""

from __future__ import annotations

import asyncio

import pytest

from qts.app import App, build_app
from qts.app.app import check_standby
from qts.app.pair import hand_over
from qts.brokers import AccountLease, read_lease
from qts.config import Config
from qts.database import Database
from qts.domain import RefusedError, SystemClock
from tests.accounts import PAPER
from tests.outbox.kit import until


def lease_of(database: Database) -> AccountLease:
    return AccountLease(database, PAPER, "/srv/qts", SystemClock(), is_live=False)


def test_a_standby_needs_the_database_of_the_active_run() -> None:
    with pytest.raises(RefusedError, match=r"--standby needs database\.url"):
        check_standby(Config())
    assert isinstance(build_app(Config()), App)


async def test_a_handover_needs_an_active_run_and_a_standby(database: Database) -> None:
    with pytest.raises(RefusedError, match="no run trades account"):
        await hand_over(database, [PAPER])
    async with lease_of(database):
        with pytest.raises(RefusedError, match="qts run --standby"):
            await hand_over(database, [PAPER])


async def test_a_handover_moves_the_lease_to_the_standby_at_once(database: Database) -> None:
    async with lease_of(database) as active:
        standby = lease_of(database)
        taking = asyncio.create_task(standby.acquire_when_free())

        async def stands_by() -> bool:
            return bool((await read_lease(database, PAPER)).standbys)

        await until(stands_by, 20)
        moving = asyncio.create_task(hand_over(database, [PAPER]))
        async with asyncio.timeout(20):
            await active.handover.wait()
            await active.release()
            await taking
            (now,) = await moving
        assert (now.epoch, now.is_held, now.standbys) == (2, True, [])
        assert standby.may_send  # the former holder has released it: there is nothing to wait for
        await standby.release()


async def test_a_standby_of_a_holder_that_was_lost_waits_before_it_sends(
    database: Database,
) -> None:
    first = lease_of(database)
    await first.acquire()
    first._drop()  # as when the process is killed: not released
    second = lease_of(database)
    await second.acquire_when_free()
    may_send = [second.is_held, second.may_send]
    await second.wait_quiet()
    assert [*may_send, second.may_send] == [True, False, True]
    await second.release()
