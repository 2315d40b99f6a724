"""The first screen: profit, equity over time, positions, open orders, fills, limits, names."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from qts.dashboard import DashboardConfig
from qts.dashboard.live_status import LimitStatus, PositionStatus
from qts.database import Database
from qts.domain import Secret
from qts.pipeline import trading_day_start
from tests.accounts import PAPER
from tests.dashboard.conftest import Site, opened
from tests.dashboard.test_equity import store
from tests.dashboard.test_orders_page import unknown_order
from tests.dashboard.test_pages import shoot, visit

SAMSUNG = PositionStatus(
    symbol="005930",
    quantity=Decimal(100),
    average_price=Decimal(70_000),
    price=Decimal(71_000),
    unrealised=Decimal(100_000),
    strategy="rsi_scalper",
    price_age_s=0.4,
    stop_price=68_600.0,
)


async def name_samsung(database: Database) -> None:
    await database.execute(
        "INSERT INTO instrument (venue, environment, symbol, market, board, name, name_en,"
        " currency, class, tick_table, lot, min_order_value, session, sale_tax, halted,"
        " administrative, liquidation, caution, first_seen_at, last_seen_at) VALUES ('kis',"
        " 'simulator', '005930', 'KRX', 'KOSPI', '삼성전자', 'Samsung Electronics', 'KRW', 'STOCK',"
        " 'krx', 1, 0, 'krx', 0, false, false, false, false, now(), now())"
    )


async def test_positions_have_name_weight_stop_and_the_age_of_their_price(
    site: Site, browser: Any
) -> None:
    await name_samsung(site.database)
    limit = LimitStatus(name="orders_per_day", used=Decimal(7), limit=Decimal(100))
    site.run(positions=[SAMSUNG], limits=[limit])
    async with visit(browser, site.tokens.link(site.address)) as tab:
        await tab.wait_text("main", "Samsung Electronics 005930")
        text = await tab.page.inner_text("main")
        for part in ("7.1 %", "68,600", "71,000", "0.4 s", f"+{chr(8361)}100,000"):
            assert part in text, part
        await tab.wait_text("main", "Orders today")
        await shoot(tab.page, "first-screen.png")
        await tab.page.keyboard.press("l")
        await tab.wait_text("main", "삼성전자 005930")


async def test_names_are_shown_with_orders_and_on_the_market_page(site: Site, browser: Any) -> None:
    await name_samsung(site.database)
    intent = await unknown_order(site.database)
    async with visit(browser, site.tokens.link(site.address)) as tab:
        await tab.wait_text("main", "Orders with an unknown outcome")
        for name in ("overview", "orders", f"orders/{intent}", "market", "market/005930"):
            await tab.open(name)
            await tab.wait_text("main", "Samsung Electronics")


async def test_the_curve_is_the_same_after_a_restart(
    database: Database, valkey_url: Secret, browser: Any, tmp_path: Path
) -> None:
    """Of the dashboard, and without a run: everything comes from the database."""
    now = datetime.now(UTC)
    day = trading_day_start(now)
    await store(database, [(day - timedelta(days=4 - n), 1_000_000 - 1000 * n) for n in range(4)])
    await store(database, [(day - timedelta(minutes=1), 1_000_000), (now, 1_020_000)])
    curves = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        opening = opened(
            database, valkey_url, tmp_path / str(number), DashboardConfig(port=0), f"r{number}:"
        )
        async with opening as site, visit(browser, site.tokens.link(site.address)) as tab:
            found = {}
            for span in ("1d", "1w", "1m", "all"):
                await tab.page.click(f'[data-span="{span}"]')
                await tab.page.wait_for_selector(f'[data-span="{span}"].chosen')
                await tab.page.wait_for_function(
                    "(span) => window.performance.getEntriesByType('resource')"
                    ".some((each) => each.name.endsWith(`equity?span=${span}`))",
                    arg=span,
                )
                await tab.page.wait_for_selector("#equity path")
                paths = "[...document.querySelectorAll('#equity path')].map((p) => p.outerHTML)"
                found[span] = await tab.page.evaluate(paths)
            curves.append(found)
            text = await tab.page.inner_text(".figures.wide")
            assert "₩1,020,000" in text  # of the last sample
            assert "Max drawdown 0.3 %" in await tab.page.inner_text("#equity")
    assert curves[0] == curves[1]
    assert len({str(each) for each in curves[0].values()}) > 1


async def test_the_curve_stays_while_a_run_ends_and_the_next_begins(
    site: Site, browser: Any
) -> None:
    now = datetime.now(UTC)
    await store(site.database, [(now - timedelta(days=n), 1_000_000 + n) for n in range(5)])
    # The curve of a week has five days; the page shows that of a day first, and then none.
    week = """() => {
        const paths = [...document.querySelectorAll('#equity path')].map((p) => p.outerHTML);
        return paths.length && paths[0].split('M').length === 6 ? paths : null;
    }"""
    curves = []
    async with visit(browser, site.tokens.link(site.address)) as tab:
        for is_running in (True, False, True):
            if is_running:
                site.run()
            else:
                await site.stop()
            await tab.page.wait_for_selector(
                "#not-running", state="detached" if is_running else "visible"
            )
            await tab.page.reload()
            await tab.page.click('[data-span="1w"]')
            curves.append(await (await tab.page.wait_for_function(week)).json_value())
    assert curves[0] == curves[1] == curves[2]


async def test_the_profit_of_the_day_is_in_won_and_percent(site: Site, browser: Any) -> None:
    start = trading_day_start(datetime.now(UTC)) - timedelta(minutes=1)
    await store(site.database, [(start, 623_400)], PAPER)
    site.run()  # realised 1,234 and unrealised 5,000
    async with visit(browser, site.tokens.link(site.address)) as tab:
        await tab.wait_text(".figures.wide", "+₩6,234")
        await tab.wait_text(".figures.wide", "+1.00 %")
