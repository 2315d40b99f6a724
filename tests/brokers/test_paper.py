"""The paper broker keeps its account through crashes, each change once, for one opener."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from qts.brokers import FeesConfig, PaperBroker, PaperConfig
from qts.database import Database
from qts.domain import (
    ManualClock,
    OrderRequest,
    OrderState,
    OrderType,
    Secret,
    Side,
    SystemClock,
    Tick,
    UnreachableError,
)
from qts.testing import ReportListener
from qts.venues import VenueRejectedError
from tests.brokers.paper_process import CONFIG, SYMBOL
from tests.instruments import LISTED

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def order(client_order_id: str, side: Side = Side.BUY, price: int | None = None) -> OrderRequest:
    return OrderRequest(
        client_order_id=client_order_id,
        symbol=SYMBOL,
        side=side,
        type=OrderType.MARKET if price is None else OrderType.LIMIT,
        quantity=Decimal(10),
        price=None if price is None else Decimal(price),
    )


def open_paper(database: Database, **settings: Any) -> AbstractAsyncContextManager[PaperBroker]:
    config = PaperConfig(**settings)
    return PaperBroker.open(database, config, FeesConfig(), LISTED, SystemClock())


def tick(broker: PaperBroker, price: int, volume: int = 100) -> None:
    broker.on_tick(Tick(SYMBOL, price, volume, price, price + 100))


@pytest.fixture
async def broker(database: Database) -> AsyncIterator[PaperBroker]:
    async with open_paper(database) as broker:
        tick(broker, 70_000)
        yield broker


async def check_balance(database: Database) -> None:
    """Assert that orders and account are the sums of their fills."""
    wrong = await database.fetch(
        """SELECT order_id FROM paper_order o LEFT JOIN paper_fill f USING (order_id)
        GROUP BY o.order_id HAVING o.filled <> coalesce(sum(f.quantity), 0)"""
    )
    assert wrong == []
    totals = await database.fetchrow(
        """SELECT
            coalesce(sum(CASE side WHEN 'BUY' THEN quantity ELSE -quantity END), 0) AS held,
            coalesce(sum(CASE side WHEN 'BUY' THEN price * quantity ELSE -price * quantity END
                + fee), 0) AS spent FROM paper_fill"""
    )
    assert totals is not None
    rows = await database.fetch("SELECT symbol, quantity FROM paper_account")
    account = {row["symbol"]: row["quantity"] for row in rows}
    assert account.pop("KRW") == PaperConfig().cash - totals["spent"]
    assert sum(account.values(), Decimal(0)) == totals["held"]


async def test_a_client_order_id_is_accepted_once(broker: PaperBroker, database: Database) -> None:
    await broker.place(order("same", price=60_000))
    with pytest.raises(VenueRejectedError) as raised:
        await broker.place(order("same", price=60_000))
    assert raised.value.code == "identifier_used"
    assert await database.fetchval("SELECT count(*) FROM paper_order") == 1
    free = (await broker.account()).cash
    await broker.place(order("other", price=60_000))
    assert (await broker.account()).cash == free


async def test_concurrent_orders_with_one_client_order_id_are_one_order(
    broker: PaperBroker, database: Database
) -> None:
    answers = await asyncio.gather(
        *(broker.place(order("same", price=60_000)) for _ in range(200)), return_exceptions=True
    )
    assert sum(isinstance(answer, str) for answer in answers) == 1
    assert sum(isinstance(answer, VenueRejectedError) for answer in answers) == 199
    assert await database.fetchval("SELECT count(*) FROM paper_order") == 1


async def test_open_orders_continue_after_a_restart(database: Database) -> None:
    async with open_paper(database, volume_share=0.5) as first:
        tick(first, 70_000, volume=8)
        order_id = await first.place(order("a", price=70_100))
    async with open_paper(database, volume_share=0.5) as second:
        (before,) = await second.orders(LONG_AGO)
        assert (before.broker_order_id, int(before.filled)) == (order_id, 4)
        tick(second, 70_000, volume=100)
        await second.wait_written()
        (after,) = await second.orders(LONG_AGO)
        fills = await second.fills(LONG_AGO)
    assert after.state is OrderState.FILLED
    assert [(fill.trade_id, int(fill.quantity)) for fill in fills] == [
        (f"{order_id}.1", 4),
        (f"{order_id}.2", 6),
    ]
    await check_balance(database)


async def test_cash_and_holdings_survive_a_restart(database: Database) -> None:
    async with open_paper(database) as first:
        tick(first, 70_000)
        await first.place(order("a"))
    async with open_paper(database) as second:
        tick(second, 70_000)
        with pytest.raises(VenueRejectedError):
            await second.place(
                msgspec.structs.replace(order("b", Side.SELL, 80_000), quantity=Decimal(11))
            )
        await second.place(order("c", Side.SELL))
        await second.wait_written()
        assert (await second.account()).holdings == ()
    await check_balance(database)


async def test_opening_an_account_fences_out_the_earlier_opener(database: Database) -> None:
    async with open_paper(database) as stale:
        tick(stale, 70_000)
        order_id = await stale.place(order("a", price=69_000))
        async with open_paper(database) as fresh:
            tick(stale, 60_000)  # fills the order in the stale engine
            with pytest.raises(UnreachableError, match="another process"):
                await stale.wait_written()
            with pytest.raises(UnreachableError, match="another process"):
                await stale.place(order("b"))
            assert await fresh.fills(LONG_AGO) == []
            tick(fresh, 68_000)
            await fresh.wait_written()
            (filled,) = await fresh.fills(LONG_AGO)
    assert filled.broker_order_id == order_id
    await check_balance(database)


async def test_an_order_whose_caller_was_cancelled_is_found_and_fills(
    broker: PaperBroker, database: Database
) -> None:
    """The row is written after the caller was cancelled, as with a lost reply."""
    request = order("a", price=69_000)
    async with database.transaction() as tx:
        await tx.execute("SELECT * FROM paper_book FOR UPDATE")
        placing = asyncio.create_task(broker.place(request))
        await until_blocked(database)
        placing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await placing
    await insert_directly(database, request)
    (found,) = (await broker.find_order(request, LONG_AGO, frozenset())).candidates
    tick(broker, 68_000)
    await broker.wait_written()
    assert [fill.broker_order_id for fill in await broker.fills(LONG_AGO)] == [
        found.broker_order_id
    ]
    await check_balance(database)


async def until_blocked(database: Database) -> None:
    async with asyncio.timeout(10):
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        while not await database.fetchval(waiting):  # noqa: ASYNC110 - PostgreSQL has no event for it
            await asyncio.sleep(0.01)


async def insert_directly(database: Database, request: OrderRequest) -> None:
    await database.execute(
        """INSERT INTO paper_order
            (order_id, book, identifier, symbol, side, type, quantity, price, placed_at)
        VALUES ('P-kept', 'paper', $1, $2, $3, $4, $5, $6, now())""",
        request.client_order_id, request.symbol, request.side, request.type, request.quantity,
        request.price,
    )  # fmt: skip


async def test_fills_are_written_once_after_the_database_returns(
    broker: PaperBroker, database: Database, postgres_admin: Any
) -> None:
    name = await database.fetchval("SELECT current_database()")
    async with ReportListener.on(broker) as listener:
        for number in range(5):
            await broker.place(order(f"{number}", price=69_000))
        for _ in range(3):
            await postgres_admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name
            )
            tick(broker, 68_000)
        await listener.until(lambda: listener.filled() == 50)
    fills = await broker.fills(LONG_AGO)
    assert len(fills) == 5
    assert {fill.trade_id for fill in fills} == {fill.trade_id for fill in listener.fills}
    await check_balance(database)


async def test_a_closed_order_can_never_be_filled(broker: PaperBroker, database: Database) -> None:
    order_id = await broker.place(order("a", price=60_000))
    await broker.cancel(order_id)
    with pytest.raises(Exception, match="not open"):
        await database.execute(
            """INSERT INTO paper_fill (trade_id, order_id, book, symbol, side, quantity, price,
                fee, at) VALUES ('x', $1, 'paper', $2, 'BUY', 1, 1, 0, now())""",
            order_id,
            SYMBOL,
        )
    with pytest.raises(Exception, match="cannot become"):
        await database.execute("UPDATE paper_order SET state = 'OPEN'")
    await check_balance(database)


async def test_two_accounts_are_independent(database: Database) -> None:
    clock = ManualClock()
    costs = FeesConfig()
    async with (
        PaperBroker.open(database, PaperConfig(account="one", cash=5), costs, LISTED, clock) as one,
        PaperBroker.open(database, PaperConfig(account="two"), costs, LISTED, clock) as two,
    ):
        tick(two, 70_000)
        await two.place(order("a"))
        await two.wait_written()
        assert (await one.account()).cash == 5
        assert await one.orders(LONG_AGO) == []


@pytest.mark.parametrize("seed", range(4))
async def test_a_killed_broker_loses_no_acknowledged_order(
    seed: int, database: Database, database_url: Secret
) -> None:
    """kill -9 in the middle of trading, three times on one account."""
    rng = random.Random(seed)  # noqa: S311 - reproducible on purpose
    acknowledged: set[str] = set()
    for run in range(3):
        acknowledged |= await run_and_kill(database_url, seed * 10 + run, rng.randrange(3, 40))
        rows = await database.fetch("SELECT order_id FROM paper_order")
        assert acknowledged <= {row["order_id"] for row in rows}
        await check_balance(database)
    async with PaperBroker.open(database, CONFIG, FeesConfig(), LISTED, SystemClock()) as broker:
        still_open = [o for o in await broker.orders(LONG_AGO) if o.state is OrderState.OPEN]
        for _ in range(200):  # prices far below and far above fill all of them
            tick(broker, 60_000, volume=10_000)
            tick(broker, 80_000, volume=10_000)
        await broker.wait_written()
        closed = {o.broker_order_id: o.state for o in await broker.orders(LONG_AGO)}
        assert all(closed[o.broker_order_id] is OrderState.FILLED for o in still_open)
    await check_balance(database)


async def run_and_kill(url: Secret, seed: int, after: int) -> set[str]:
    """Kill the process after `after` lines; return the ids of the orders it placed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.brokers.paper_process", url.reveal(), str(seed),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    acknowledged: set[str] = set()
    async with asyncio.timeout(30):
        for _ in range(after):
            result, order_id = (await process.stdout.readline()).decode().split()
            if result == "placed":
                acknowledged.add(order_id)
        process.kill()
        await process.stdout.read()
        await process.wait()
    return acknowledged


async def test_fills_that_the_database_refused_are_written_later(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its disk was full or it was read-only for a moment."""
    async with open_paper(database) as broker:
        tick(broker, 70_000)
        await broker.place(order("a", price=69_000))
        write, refused = broker._store.write, asyncio.Event()

        async def once(batch: Any) -> Any:
            if not refused.is_set():
                refused.set()
                async with database.transaction() as tx:
                    await tx.execute("SET TRANSACTION READ ONLY")
                    await tx.execute("DELETE FROM paper_fill")
            return await write(batch)

        monkeypatch.setattr(broker._store, "write", once)
        tick(broker, 68_000)
        await refused.wait()
        await broker.wait_written()
        assert len(await broker.fills(LONG_AGO)) == 1
