"""Several runs on one database: the list, the sums, and the pages of another run."""

from __future__ import annotations

import asyncio
import re
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from qts.app import dashboard_launch, serve_dashboard
from qts.brokers import AccountLease, open_account
from qts.client import Client
from qts.config import Config
from qts.dashboard import ApiTokens, DashboardConfig
from qts.dashboard.runs import RunRow, RunsPage, accounts_of_run, load_run_status, load_runs
from qts.database import Database, DatabaseConfig
from qts.domain import AccountKey, RefusedError, Secret, SystemClock
from qts.risk import KillSwitch
from tests.accounts import PAPER
from tests.dashboard.conftest import Site
from tests.dashboard.programs import CLI, program
from tests.dashboard.reporting import make_older, money, reporting_run
from tests.dashboard.test_orders_page import unknown_order
from tests.dashboard.test_pages import shoot, visit
from tests.dashboard.timing import TIMEOUT_S
from tests.homes import create_home

KIS = AccountKey.of("kis", "12345678-01", "live")
UPBIT = AccountKey.of("upbit", "main")
OTHER = AccountKey.of("paper", "another book")


def by_account(page: RunsPage) -> dict[str, RunRow]:
    return {row.account: row for row in page.runs}


async def test_the_list_has_every_run_and_a_sum_by_mode(database: Database) -> None:
    async with (
        reporting_run(database, "stocks", KIS) as stocks,
        reporting_run(database, "coins", UPBIT) as coins,
        reporting_run(database, "trial", OTHER) as trial,
    ):
        await stocks.write(money(1_000_000, 5000, -2000), mode="live")
        await coins.write(money(500_000, 100), mode="live")
        await trial.write(money(9_000_000, 1))
        page = await load_runs(database, [PAPER])
        rows = by_account(page)
        assert {row.state for row in rows.values()} == {"active"}
        found = rows[str(KIS)]
        assert (found.name, found.label, found.currency) == ("stocks", "LIVE", "KRW")
        assert (found.equity, found.day_profit, found.trading) == (
            Decimal(1_000_000),
            Decimal(3000),
            None,
        )
        assert found.verdict is not None
        assert found.verdict.en == "QTS trades with 1 strategy."
        assert found.age_s is not None
        assert found.age_s < 5
        sums = {each.label: each for each in page.totals}
        assert (sums["LIVE"].equity, sums["LIVE"].day_profit) == (Decimal(1_500_000), Decimal(3100))
        assert (sums["LIVE"].counted, sums["LIVE"].accounts, sums["LIVE"].missing) == (2, 2, [])
        assert sums["PAPER"].equity == 9_000_000  # paper money is no part of real money
        assert page.own == [str(PAPER)]


async def test_what_is_old_or_unknown_is_in_no_sum(database: Database) -> None:
    async with (
        reporting_run(database, "stocks", KIS) as stocks,
        reporting_run(database, "coins", UPBIT) as coins,
    ):
        await stocks.write(money(1_000_000, 5000), mode="live")
        await coins.write(money(0), mode="live")  # its account is not loaded yet
        page = await load_runs(database, [KIS])
        (total,) = page.totals
        assert (total.equity, total.counted, total.missing) == (Decimal(1_000_000), 1, [str(UPBIT)])
        row = by_account(page)[str(UPBIT)]
        assert (row.is_current, row.equity, row.day_profit, row.positions) == (True, *[None] * 3)

        await make_older(database, KIS, 60.0)
        page = await load_runs(database, [KIS])
        row = by_account(page)[str(KIS)]
        assert (row.state, row.is_current, row.equity) == ("silent", False, Decimal(1_000_000))
        assert row.verdict is None
        assert row.age_s is not None
        assert 60 <= row.age_s < 120
        (total,) = page.totals
        assert (total.equity, total.day_profit, total.counted) == (None, None, 0)
        assert total.missing == [str(KIS), str(UPBIT)]


async def test_a_run_that_ended_stays_listed_for_a_week_without_a_sum(database: Database) -> None:
    async with reporting_run(database, "stocks", KIS) as stocks:
        await stocks.write(money(1_000_000), mode="live")
    page = await load_runs(database, [])
    row = by_account(page)[str(KIS)]
    assert (row.state, row.is_current, row.equity) == ("ended", False, Decimal(1_000_000))
    assert page.totals[0].equity is None
    await make_older(database, KIS, 8 * 86_400)
    assert (await load_runs(database, [])).runs == []


async def test_a_run_that_lost_its_account_writes_nothing(database: Database) -> None:
    async with reporting_run(database, "first", KIS) as first:
        await first.write(money(1_000_000), mode="live")
        await database.execute("UPDATE account SET epoch = epoch + 1 WHERE account = $1", KIS[1])
        row = by_account(await load_runs(database, []))[str(KIS)]
        assert (row.state, row.is_current) == ("silent", False)  # of the former holder
        await first.write(money(2_000_000), mode="live")
        stored = await load_run_status(database, KIS)
        assert stored is not None
        assert stored.status.money is not None
        assert stored.status.money.equity == 1_000_000
        assert not stored.is_current


async def test_a_standby_is_named_and_takes_the_row_over(database: Database) -> None:
    standby = AccountLease(database, KIS, "/home/second", SystemClock(), is_live=False)
    async with reporting_run(database, "first", KIS) as first:
        await first.write(money(1_000_000), mode="live")
        taking = asyncio.create_task(standby.acquire_when_free())
        async with asyncio.timeout(TIMEOUT_S):
            while not (row := by_account(await load_runs(database, []))[str(KIS)]).standbys:  # noqa: ASYNC110 - no signal of it
                await asyncio.sleep(0.02)
        assert (row.state, row.home) == ("active", "/home/first")
    await taking
    row = by_account(await load_runs(database, []))[str(KIS)]
    assert (row.state, row.home, row.is_current) == ("silent", "/home/second", False)
    await standby.release()


async def test_a_status_of_another_version_counts_as_none(database: Database) -> None:
    async with reporting_run(database, "first", KIS) as first:
        await first.write(money(1_000_000), mode="live")
        await database.execute("UPDATE run_status SET status = '{\"new\": 1}'")
        row = by_account(await load_runs(database, []))[str(KIS)]
        assert (row.state, row.label, row.equity) == ("silent", None, None)
        assert (await load_runs(database, [])).totals == []
        assert await load_run_status(database, KIS) is None


async def test_the_accounts_of_one_run_belong_together(database: Database) -> None:
    async with reporting_run(database, "both", KIS, UPBIT) as both:
        await both.write(money(1), money(2))
        assert await accounts_of_run(database, str(UPBIT)) == [KIS, UPBIT]
    with pytest.raises(RefusedError, match="account 'kis:1' is unknown"):
        await accounts_of_run(database, "kis:1")


async def test_orders_alerts_and_switches_are_those_of_the_account(site: Site) -> None:
    await open_account(site.database, OTHER, is_live=False)
    await unknown_order(site.database)
    await KillSwitch(site.database, PAPER).set(False, "kim", "a test")
    async with reporting_run(site.database, "own", PAPER) as own:
        await own.write(money(7))
        async with program(site) as bot:
            page = await bot.get("/runs")
    (row,) = page["runs"]
    assert (row["open_orders"], row["unknown"], row["alerts"]) == (1, 1, 0)
    assert row["trading"] is False
    assert page["own"] == [str(PAPER)]


async def test_the_api_reads_another_run(site: Site) -> None:
    site.run()
    await unknown_order(site.database)
    await KillSwitch(site.database, OTHER).enable_unset((), "test")
    async with reporting_run(site.database, "other", OTHER) as other, program(site) as bot:
        await other.write(money(7_000, 12))
        assert len((await bot.get("/orders"))["orders"]) == 1
        assert (await bot.get(f"/orders?account={OTHER}"))["orders"] == []
        status = await bot.get(f"/status?account={OTHER}")
        assert (status["run"], status["live"]) == ("remote", None)
        assert status["verdict"]["en"] == "QTS trades with 1 strategy."
        assert status["stored"]["status"]["money"]["equity"] == "7000"
        found, answer = await bot.request("GET", "/orders?account=paper:0")
        assert (found, "account 'paper:0' is unknown" in answer["detail"]) == (422, True)
        with Client(site.address, bot.token) as client:
            page = await asyncio.to_thread(client.runs)
            assert [row.account for row in page.runs] == [str(OTHER)]
            seen = await asyncio.to_thread(client.status, str(OTHER))
            assert seen.run == "remote"


async def test_a_remote_run_that_hangs_is_unknown(site: Site) -> None:
    await KillSwitch(site.database, OTHER).enable_unset((), "test")
    async with reporting_run(site.database, "other", OTHER) as other, program(site) as bot:
        await other.write(money(7_000))
        assert (await bot.get(f"/status?account={OTHER}"))["run"] == "remote"
        await make_older(site.database, OTHER, 100)
        async with asyncio.timeout(TIMEOUT_S):
            while (status := await bot.get(f"/status?account={OTHER}"))["run"] == "remote":  # noqa: ASYNC110 - no signal of it
                await asyncio.sleep(0.05)
        assert status["run"] == "silent"
        assert "a run holds the account, but its last status is 10" in status["verdict"]["en"]


async def test_a_shared_cache_gives_the_live_status(site: Site) -> None:
    from tests.dashboard import statuses

    async with reporting_run(site.database, "other", OTHER) as other, program(site) as bot:
        await other.write(money(7_000))
        published = await statuses.publish(site.store, f"{site.prefix}{OTHER.account}:")
        status = await bot.get(f"/status?account={OTHER}")
        assert status["run"] == "reporting"
        assert status["live"]["at"] == published.at
        await site.store.delete([f"{site.prefix}{OTHER.account}:live"])


async def test_the_kill_switch_of_another_run_is_audited_with_its_account(site: Site) -> None:
    await open_account(site.database, OTHER, is_live=False)
    async with site.connect() as page:
        headers = {"Origin": site.address, "X-QTS-CSRF": page.csrf}
        body = {"action": "kill", "enabled": False, "reason": "fire"}
        path = f"/api/action?account={OTHER}"
        async with page.client.post(path, json=body, headers=headers) as reply:
            assert reply.status == 200, await reply.text()
        other = {"action": "requeue", "event_id": str(uuid4()), "outcome_checked": True}
        async with page.client.post(path, json=other, headers=headers) as reply:
            assert "does not belong to one account" in (await reply.json())["error"]
    assert not (await KillSwitch(site.database, OTHER).all())["account"].enabled
    assert await KillSwitch(site.database, PAPER).all() == {}
    row = await site.database.fetchrow(
        "SELECT detail FROM dashboard_action WHERE action = 'kill' ORDER BY id DESC LIMIT 1"
    )
    assert row is not None
    assert row["detail"]["run"] == str(OTHER)


async def test_the_pages_lead_to_another_run_and_back(
    site: Site, browser: Any, tmp_path: Path
) -> None:
    site.run()
    await unknown_order(site.database)
    await KillSwitch(site.database, OTHER).enable_unset((), "test")
    async with (
        reporting_run(site.database, "trial", OTHER) as other,
        visit(browser, site.tokens.link(site.address)) as tab,
    ):
        writing = asyncio.create_task(_write_forever(other))
        try:
            await tab.open("runs")
            await tab.wait_text(f'tr[data-account="{OTHER}"]', "₩7,000")
            await tab.wait_text('[data-total="PAPER KRW"]', "1 of 1 accounts")
            await shoot(tab.page, "runs.png")
            await tab.page.click(f'tr[data-account="{OTHER}"] a')
            await tab.wait_text("#other-run", OTHER.short)
            await tab.wait_text("#top", "PAPER")
            await tab.wait_text("main", "₩7,000")
            await shoot(tab.page, "another-run.png")
            pages = await tab.page.evaluate(
                "[...document.querySelectorAll('#nav a')].map((each) => each.hash)"
            )
            assert pages == ["#/overview", "#/orders", "#/trades", "#/runs"]
            await tab.page.keyboard.press("5")
            await tab.wait_text("main", "No orders.")  # the unknown one is of the other account
            await tab.page.keyboard.press("k")
            await tab.wait_text("dialog", f"On another run: account {OTHER}")
            await tab.page.keyboard.press("Escape")
        finally:
            writing.cancel()
        await make_older(site.database, OTHER, 60)
        await tab.page.click("#other-run")
        await tab.wait_text(f'tr[data-account="{OTHER}"]', "silent")
        await tab.wait_text(f'tr[data-account="{OTHER}"]', "Unknown: a run holds the account")
        await tab.wait_text('[data-total="PAPER KRW"]', "not counted")
        assert "₩7,000" not in await tab.page.inner_text('[data-total="PAPER KRW"]')
        grey = f'tr[data-account="{OTHER}"] td.old'
        assert await tab.page.locator(grey).first.inner_text() == "₩7,000"


async def _write_forever(run: Any) -> None:
    while True:
        await run.write(money(7_000, 12))
        await asyncio.sleep(0.5)


async def test_a_view_needs_only_the_database(
    database: Database, database_url: Secret, tmp_path: Path
) -> None:
    """Without a run, a cache or a home of its own."""
    config = Config(
        home=tmp_path / "view",
        database=DatabaseConfig(url=database_url),
        dashboard=DashboardConfig(port=0),
    )
    create_home(tmp_path / "view")
    _, secret = await ApiTokens(database).create("view", "read", 1, CLI)
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with reporting_run(database, "stocks", KIS) as stocks:
        await stocks.write(money(1_000_000), mode="live")
        serving = asyncio.create_task(serve_dashboard(dashboard_launch(config), ready))
        address = re.findall(r"http://127.0.0.1:\d+", await ready)[0]
        with Client(address, secret.reveal()) as client:
            page = await asyncio.to_thread(client.runs)
            assert [(row.account, row.state) for row in page.runs] == [(str(KIS), "active")]
            assert (await asyncio.to_thread(client.status, str(KIS))).run == "remote"
            # Until its first look at the run of the settings.
            while (status := await asyncio.to_thread(client.status)).run == "unknown":  # noqa: ASYNC110 - it sends no event
                await asyncio.sleep(0.05)
            assert status.run == "ended"
        serving.cancel()
        await asyncio.wait({serving})
    with pytest.raises(RefusedError, match=r"nothing to show: .* or name database\.url"):
        dashboard_launch(Config(home=tmp_path / "other"))
