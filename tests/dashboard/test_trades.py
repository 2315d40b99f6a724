"""Trades: round trips and their sums, the page, its CSV, and the life of an order."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from qts.backtest import Trade
from qts.dashboard.results import group_trades, load_trades, to_csv
from tests.accounts import PAPER
from tests.dashboard.conftest import Site
from tests.dashboard.filled import TRIPS, store_trips
from tests.dashboard.test_overview import name_samsung
from tests.dashboard.test_pages import shoot, visit

D = Decimal
AT = datetime(2026, 11, 16, 15, 30, tzinfo=UTC)  # the 17th in Seoul


def trade(profit: int, symbol: str = "005930", hours: int = 0, **more: Any) -> Trade:
    closed = AT - timedelta(hours=hours)
    values: dict[str, Any] = {
        "symbol": symbol, "opened_at": closed - timedelta(minutes=5), "closed_at": closed,
        "quantity": D(10), "entry": D(1000), "exit": D(1000 + profit // 10), "fees": D("1.50"),
        "profit": D(profit), "reason": "EXIT_TP", "strategy": "rsi", **more,
    }  # fmt: skip
    return Trade(**values)


def test_groups_add_up_and_days_are_those_of_seoul() -> None:
    trades = [
        trade(300),
        trade(-100, "000660", hours=1, reason="EXIT_STOPLOSS"),  # before midnight in Seoul
        trade(-50, hours=20, strategy=""),
    ]
    view = group_trades(trades)
    assert [(each.name, each.trades, each.wins, each.profit) for each in view.days] == [
        ("2026-11-17", 1, 1, D(300)),
        ("2026-11-16", 2, 0, D(-150)),
    ]
    assert [(each.name, each.profit) for each in view.strategies] == [
        ("rsi", D(200)),
        ("manual", D(-50)),
    ]
    assert [(each.name, each.profit) for each in view.symbols] == [
        ("005930", D(250)),
        ("000660", D(-100)),
    ]
    assert [(each.name, each.trades) for each in view.reasons] == [
        ("EXIT_TP", 2),
        ("EXIT_STOPLOSS", 1),
    ]
    groups = (view.days, view.strategies, view.symbols, view.reasons)
    assert {sum(each.profit for each in part) for part in groups} == {view.total.profit}


def test_csv_is_read_back() -> None:
    (row,) = csv.DictReader(io.StringIO(to_csv([trade(300)])))
    assert row == {
        "opened_at": "2026-11-17T00:25:00+09:00", "closed_at": "2026-11-17T00:30:00+09:00",
        "symbol": "005930", "strategy": "rsi", "quantity": "10", "entry": "1000", "exit": "1030",
        "fees": "1.5", "profit": "300", "gain": "0.030000", "reason": "EXIT_TP",
    }  # fmt: skip


async def test_round_trips_are_those_of_the_ledger(site: Site) -> None:
    await store_trips(site.database)
    now = datetime.now(UTC)
    found = await load_trades(site.database, (PAPER,), 30, now)
    expected = [(each[1], D(each[2]), D(each[3]), each[4].value) for each in reversed(TRIPS)]
    assert sorted((each.symbol, each.entry, each.exit, each.reason) for each in found) == sorted(
        expected
    )
    assert [each.closed_at for each in found] == sorted(
        (each.closed_at for each in found), reverse=True
    )
    assert all(each.profit == (each.exit - each.entry) * 10 - each.fees for each in found)
    assert len(await load_trades(site.database, (PAPER,), 7, now)) == 4


async def test_the_page_has_sums_a_calendar_and_a_download(site: Site, browser: Any) -> None:
    await name_samsung(site.database)
    await store_trips(site.database)
    site.run()
    async with visit(browser, site.tokens.link(site.address)) as tab:
        await tab.open("trades")
        await tab.wait_text("#trips", "Samsung Electronics 005930")
        assert await tab.page.locator("#trips tbody tr").count() == len(TRIPS)
        assert await tab.page.locator("#days [data-day]").count() == len(
            {each[0] for each in TRIPS}
        )
        text = await tab.page.inner_text("main")
        for part in ("EXIT_STOPLOSS", "rsi_scalper", "60.0 %", "90 min"):
            assert part in text, part
        await shoot(tab.page, "trades.png")
        async with tab.page.expect_download() as started:
            await tab.page.click("a[download]")
        file = await (await started.value).path()
        rows = list(csv.DictReader(io.StringIO(file.read_text("utf-8"))))
        assert len(rows) == len(TRIPS)
        await tab.page.click('[data-do="trades-span"][data-span="7d"]')
        await tab.page.wait_for_function(
            "(rows) => document.querySelectorAll('#trips tbody tr').length === rows", arg=4
        )
    async with site.connect(None) as stranger:
        assert await stranger.status("/api/trades.csv") == 401


async def test_an_order_has_its_steps_in_milliseconds(site: Site, browser: Any) -> None:
    await store_trips(site.database)
    intent = await site.database.fetchval("SELECT id FROM order_intent ORDER BY id DESC LIMIT 1")
    row = await site.database.fetchrow(
        "SELECT a.sent_at, s.decided_at FROM order_attempt a JOIN order_intent i"
        " ON i.id = a.order_intent_id JOIN signal s ON s.id = i.signal_id WHERE i.id = $1",
        intent,
    )
    assert row is not None
    async with visit(browser, site.tokens.link(site.address)) as tab:
        await tab.open(f"orders/{intent}")
        steps = await tab.page.locator(".timeline li").all_inner_texts()
        assert [each.split()[0] for each in steps] == [
            "signal", "approved", "intent", "attempt", "accepted", "fill",
        ]  # fmt: skip
        decided = row["decided_at"].astimezone(UTC) + timedelta(hours=9)
        stamp = decided.strftime("%Y-%m-%d %H:%M:%S.") + f"{decided.microsecond // 1000:03d} KST"
        assert stamp in steps[0]
        assert all(" ms" in each for each in steps[1:])
        assert "From the first step to the last" in await tab.page.inner_text("#order-life")
