"""Roles over NATS: what is decided is ordered, once, whichever process or server is killed.

Judged by the simulator's own record; QTS_SEED repeats a long run.
"""

from __future__ import annotations

import asyncio
import os
import time
from datetime import datetime, timedelta
from pathlib import Path
from signal import SIGKILL
from zoneinfo import ZoneInfo

import pytest

from qts.embedded import Home, NatsServer
from qts.simulators import MarketConfig
from tests.faults.roles import ROLES, Roles, roles
from tests.outbox.nats_cluster import Cluster, cluster
from tests.outbox.worker_group import seed

ROUNDS = int(os.environ.get("QTS_ROUNDS", "60"))
TRADES = 20
DAY_S = 300  # that the day of a lively market takes at most
INTENTS = "SELECT count(*) FROM order_intent"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path.resolve()


@pytest.mark.timeout(120)
async def test_three_roles_trade_as_one_run_does(folder: Path) -> None:
    with NatsServer(Home.at(folder / "nats")) as nats:
        async with roles(folder, 1, nats) as system:
            await system.trades(4)
            await system.end()
            (count,) = await system.query(INTENTS)
            assert len(system.venue.orders()) == count[0]
            assert await system.judge() == []
            feed, strategies = system.link("feed"), system.link("strategies")
            execution = system.link("execution")
    dead = {name: each["dead"] for name, each in system.summaries["execution"]["outbox"].items()}
    assert not any(dead.values()), dead
    assert feed["ticks_sent"] > 0
    assert strategies["ticks_received"] > 0
    assert execution["ticks_received"] > 0
    assert strategies["signals_sent"] == execution["signals_received"] >= count[0]
    assert execution["reports_sent"] >= strategies["reports_received"] > 0
    assert strategies["signals_pending"] == execution["reports_pending"] == 0
    assert strategies["gaps_pending"] == execution["gaps_pending"] == 0


def lively_market() -> MarketConfig:
    """Return a fast market that begins in the past: its clock is never ahead of ours in `DAY_S`.

    It begins on this day in Seoul: KIS lists the orders of a day.
    """
    now = datetime.now(ZoneInfo("Asia/Seoul")).replace(tzinfo=None)
    start = max(now - timedelta(hours=5), now.replace(hour=0, minute=0, second=1))
    speed = max(1.0, (now - start).total_seconds() / DAY_S)
    return MarketConfig(
        symbols=300, speed=speed, surges_per_hour=60, start=start, always_open=True, suspended=0
    )


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_a_lively_day_over_three_servers_ends_with_the_venues_books(folder: Path) -> None:
    """As tests/acceptance/test_trading_run.py for one process: stocks, built-in strategies."""

    async def prepare(system: Roles) -> None:
        strategies = "rsi_scalper,moving_average_swing,surge_breakout,tests.faults.pacer:Pacer"
        system.set(QTS_OUTBOX__NATS__REPLICAS="3", QTS_PIPELINE__STRATEGIES=strategies)
        system.set(QTS_FEED__STREAM="false")  # KIS has one stream for a key: execution's

    with cluster(folder) as servers:
        async with roles(folder, 1, servers, prepare, ("kis", lively_market())) as system:
            for _ in range(TRADES // 2):
                await system.trades(2)
            await system.end()
            assert await system.judge() == []
            summary, strategies = system.summaries["execution"], system.link("strategies")
    print({name: summary[name] for name in ("ticks", "signals", "intents", "fills", "attempts")})
    assert (summary["verdict"], summary["books_agree"]) == ("OK", True), summary
    assert summary["ticks"] > 10 * TRADES
    assert strategies["signals_sent"] == system.link("execution")["signals_received"] > 0
    assert summary["signals"] >= summary["intents"] >= TRADES
    assert summary["fills"] > 0
    assert summary["lanes"]["P0"]["handled"] >= 2 * summary["fills"]
    assert summary["lanes"]["P1"]["handled"] == summary["lanes"]["P1"]["published"]
    left = {name: (each["pending"], each["dead"]) for name, each in summary["outbox"].items()}
    assert set(left.values()) == {(0, 0)}, left
    for each in ROLES:
        assert system.link(each)["gaps_pending"] == 0


async def strike(system: Roles, servers: Cluster) -> str:
    """Kill a role or a server at a random moment, and start it again."""
    name = system.chance.choice((*ROLES, *servers.names))
    await asyncio.sleep(system.chance.uniform(0, 1))  # a random moment is the point
    if name in ROLES:
        await system.kill_role(name)
    else:
        system.struck["NATS killed"] += 1
        servers.kill(name)
        await asyncio.sleep(system.chance.uniform(0, 2))
        servers.start(name)
    return name


@pytest.mark.soak
@pytest.mark.timeout(ROUNDS * 60 + 120)
async def test_nothing_is_lost_or_doubled_whatever_is_killed(folder: Path) -> None:
    async def prepare(system: Roles) -> None:
        system.set(QTS_OUTBOX__NATS__REPLICAS="3")

    with cluster(folder) as servers:
        async with roles(folder, seed(), servers, prepare) as system:
            for number in range(ROUNDS):
                await system.trades(2)
                began = time.monotonic()
                name = await strike(system, servers)
                took, placed = time.monotonic() - began, len(system.venue.orders())
                print(f"round {number + 1} {name}: {took:.1f} s, {placed} orders", flush=True)
            await system.trades(2)
            await system.end()
            assert await system.judge() == []
            print(dict(system.struck), len(system.venue.orders()), "orders")


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_one_process_of_a_role_acts_and_a_standby_takes_over(folder: Path) -> None:
    with NatsServer(Home.at(folder / "nats")) as nats:
        async with roles(folder, 1, nats) as system:
            await system.trades(1)
            for role, words in (("execution", "is traded by"), ("strategies", "run in another")):
                second = system.spawn(role, f"second {role}")
                assert await asyncio.to_thread(second.end) == 2
                assert words in second.errors
            standby = system.spawn("execution", "standby", "--standby")
            await asyncio.to_thread(standby.until, "Standing by")
            os.kill(system.runs["execution"].process.pid, SIGKILL)
            await asyncio.to_thread(system.runs["execution"].end)
            await system.use("execution", standby)
            await system.trades(2)
            await system.end()
            assert await system.judge() == []
