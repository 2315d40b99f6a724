"""The price chart in a real browser: candles, volume, gaps, fills, levels, crosshair, zoom."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from qts.dashboard.live_status import PositionStatus
from tests.accounts import PAPER
from tests.dashboard.conftest import Site
from tests.dashboard.filled import walk
from tests.dashboard.test_candles import BEGAN
from tests.dashboard.test_pages import BrowserTab, shoot, visit

PAGE = Path(__file__).parents[2] / "src" / "qts" / "dashboard" / "page"
HELD = PositionStatus(
    symbol="005930", quantity=Decimal(10), average_price=Decimal(70_000), price=Decimal(70_500),
    unrealised=Decimal(5000), strategy="rsi_scalper", price_age_s=0.4, stop_price=69_500.0,
)  # fmt: skip


async def store_fill(site: Site, side: str, price: int, at_s: float) -> None:
    at = datetime.fromtimestamp(BEGAN.timestamp() + at_s, UTC)
    await site.database.execute(
        "INSERT INTO broker_order (broker, account, broker_order_id, symbol, side, order_type,"
        " quantity, state, origin, placed_at) VALUES ('paper', $1, $2, '005930', $3, 'MARKET', 10,"
        " 'FILLED', 'FOREIGN', $4)",
        PAPER.account, f"V{at_s}", side, at,
    )  # fmt: skip
    await site.database.execute(
        "INSERT INTO fill (broker, account, trade_id, broker_order_id, symbol, side, quantity,"
        " price, fee, traded_at) VALUES ('paper', $1, $2, $3, '005930', $4, 10, $5, 0, $6)",
        PAPER.account, f"T{at_s}", f"V{at_s}", side, Decimal(price), at,
    )  # fmt: skip


async def data_of(tab: BrowserTab) -> dict[str, str]:
    return dict(await tab.page.evaluate("({...document.getElementById('price-chart').dataset})"))


async def test_the_chart_shows_what_was_traded_and_where_time_is_missing(
    site: Site, browser: Any
) -> None:
    (site.record / "2026-11-16.0001.jsonl").write_bytes(b"".join(walk(600)))
    await store_fill(site, "BUY", 70_400, 60)
    await store_fill(site, "SELL", 70_900, 900)
    site.run(positions=[HELD])
    async with visit(browser, site.tokens.link(site.address)) as tab:
        await tab.open("market/005930")
        await tab.page.wait_for_selector("#price-chart[data-levels]")
        data = await data_of(tab)
        assert (int(data["bars"]), int(data["gaps"])) == (301, 30)  # five minutes of five seconds
        assert data["fills"] == "2"
        assert data["levels"] == "average 70000, stop 69500"
        last = await tab.page.inner_text("#legend")
        for part in ("KST", "open", "high", "low", "close", "volume"):
            assert part in last
        box = await tab.page.locator("#price-chart canvas").first.bounding_box()
        await tab.page.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] / 2)
        await tab.page.wait_for_function(
            "(text) => document.getElementById('legend').innerText !== text", arg=last
        )  # of the bar under the crosshair
        assert re.match(r"2026-11-16 09:\d\d:\d\d KST", await tab.page.inner_text("#legend"))
        await shoot(tab.page, "price-chart.png")
        assert await tab.page.get_attribute("a[href*=tradingview]", "href") == (
            "https://www.tradingview.com/"
        )
        await tab.page.click('[data-bar="60"]')
        await tab.page.wait_for_selector('#price-chart:not([data-bars="301"])')
        await tab.page.keyboard.press("t")
        await tab.open("market")  # a page of the same name: it may be the one before
        await tab.page.wait_for_selector("#price-chart", state="detached")


async def test_zoom_by_buttons(site: Site, browser: Any) -> None:
    (site.record / "2026-11-16.0001.jsonl").write_bytes(b"".join(walk(600)))
    site.run()
    picture = "document.querySelector('#price-chart canvas').toDataURL()"
    async with visit(browser, site.tokens.link(site.address)) as tab:
        await tab.open("market/005930")
        await tab.page.wait_for_selector("#price-chart[data-levels]")
        seen = set()
        for factor in ("0.5", "0.5", "0"):
            before = await tab.page.evaluate(picture)
            await tab.page.click(f'[data-do="zoom"][data-factor="{factor}"]')
            await tab.page.wait_for_function(f"(before) => {picture} !== before", arg=before)
            seen.add(before)
        assert len(seen) == 3


def test_the_library_is_the_one_of_the_notice() -> None:
    found = hashlib.sha256((PAGE / "lightweight-charts.js").read_bytes()).hexdigest()
    notice = (PAGE / "NOTICE").read_text("utf-8")
    assert found in notice
    assert "TradingView Lightweight Charts 5.2.1" in notice


async def test_a_browser_whose_language_is_none_has_a_chart(site: Site, browser: Any) -> None:
    """Chromium says en-US@posix where no locale is set, which is no language tag."""
    (site.record / "2026-11-16.0001.jsonl").write_bytes(b"".join(walk(60)))
    site.run()
    language = "Object.defineProperty(navigator, 'language', { get: () => 'en-US@posix' })"
    async with visit(
        browser,
        site.tokens.link(site.address),
        prepare=lambda page: [page.add_init_script(language)],
    ) as tab:
        await tab.open("market/005930")
        await tab.page.wait_for_selector("#price-chart[data-bars]")
        assert int((await data_of(tab))["bars"]) > 0
