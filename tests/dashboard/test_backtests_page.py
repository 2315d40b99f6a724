"""The Backtests page: jobs of `qts backtest --job`, and the result of one."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from qts.backtest import BacktestJobHandler, show_job, submit_job
from qts.database import Database
from qts.outbox import BACKTEST_COMMAND, Dispatcher, OutboxConfig, PostgresBus
from qts.outbox.testing import run_due
from tests.dashboard.conftest import Site
from tests.dashboard.test_pages import shoot, visit

GOOD = ("moving_average_swing", "--simulated-day", "7", "--symbols", "20", "--seconds", "600")
BAD = ("no_such_strategy", "--simulated-day", "7")


async def jobs(database: Database) -> tuple[UUID, UUID]:
    """Run one job that succeeds and one that fails, as a worker does."""
    streams = OutboxConfig().streams
    async with PostgresBus.open(database, streams) as bus:
        dispatcher = Dispatcher()
        BacktestJobHandler(database, bus).register(dispatcher)
        good = await submit_job(database, bus, GOOD)
        bad = await submit_job(database, bus, BAD)
        await run_due(database, BACKTEST_COMMAND, streams[BACKTEST_COMMAND], dispatcher)
    return good, bad


async def test_jobs_are_listed_and_a_result_is_shown_with_its_curve(
    site: Site, browser: Any
) -> None:
    good, _bad = await jobs(site.database)
    job = await show_job(site.database, good)
    assert job.result is not None
    async with visit(browser, site.tokens.link(site.address)) as tab:
        await tab.open("backtests")
        await tab.page.wait_for_selector("main tbody tr:nth-child(2)")
        rows = await tab.page.locator("main tbody tr").all_inner_texts()
        assert ["DONE" in row for row in rows] == [False, True]  # newest first
        assert "no_such_strategy" in rows[0]
        assert "FAILED" in rows[0]
        assert " ".join(GOOD) in rows[1]
        await tab.page.click(f'a[href="#/backtests/{good}"]')
        await tab.page.wait_for_selector("#backtest")
        text = await tab.page.inner_text("main")
        assert f"{job.result['events']:,}" in text
        assert await tab.page.locator("main svg.chart path.stroke").count() == 1
        await shoot(tab.page, "backtest.png")
    async with site.connect() as operator:
        result = (await operator.get(f"/api/backtest?id={good}"))["job"]["result"]
        assert result["performance"] == job.result["performance"]
        assert "trades" not in result  # there may be many, and no page shows them
        for wrong in ("x", str(UUID(int=7))):
            assert await operator.status(f"/api/backtest?id={wrong}") == 422
