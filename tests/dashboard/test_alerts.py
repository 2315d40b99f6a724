"""Alerts on the first screen: open until they are acknowledged, by whom and when."""

from __future__ import annotations

import time
from typing import Any

from qts.dashboard import Role
from qts.notify import AlertStore, RecentAlert
from tests.accounts import PAPER
from tests.dashboard.conftest import Site
from tests.dashboard.test_actions import action_rows
from tests.dashboard.test_pages import shoot, visit


async def two_alerts(site: Site) -> AlertStore:
    store = AlertStore(site.database, [PAPER])
    now = time.time()
    for _ in range(3):
        await store.add(RecentAlert(now, "critical", "venue stream lost", "FS060"))
    await store.add(RecentAlert(now - 60, "warning", "price of 005930 is old", "FS105"))
    return store


async def test_an_alert_is_open_until_it_is_acknowledged(site: Site, browser: Any) -> None:
    store = await two_alerts(site)
    lost = RecentAlert(time.time(), "critical", "venue stream lost", "FS060")
    new = RecentAlert(time.time(), "warning", "not stored yet", "AN001")
    site.run(notices=[new, lost])
    async with visit(browser, site.tokens.link(site.address, Role.TRADE), 1366, 1000) as tab:
        page = tab.page
        await tab.wait_text(".alerts.open", f"venue stream lost ({chr(215)}3)")
        await tab.wait_text(".alerts.open", "not stored yet")
        assert await page.locator(".alerts.open li").count() == 3
        await page.focus('.alerts.open li:has-text("venue stream lost") button')
        await page.keyboard.press("Enter")
        assert "venue stream lost" in await page.inner_text("#confirm")
        await page.keyboard.type("maintenance")
        await page.keyboard.press("Enter")
        await tab.wait_text(".alerts.past", "maintenance")
        assert "venue stream lost" not in await page.inner_text(".alerts.open")
        await page.locator(".alerts.open").scroll_into_view_if_needed()
        await shoot(page, "alerts.png")
    (left,) = await store.rows(10, acknowledged=False)
    assert left.code == "FS105"
    (row,) = await action_rows(site.database)
    assert (row["action"], row["outcome"]) == ("acknowledge", "DONE")
    assert row["message"] == "1 alert acknowledged"
    assert row["detail"]["reason"] == "maintenance"


async def test_the_read_role_cannot_acknowledge(site: Site, browser: Any) -> None:
    store = await two_alerts(site)
    site.run()
    async with visit(browser, site.tokens.link(site.address, Role.READ)) as tab:
        await tab.wait_text(".alerts.open", "venue stream lost")
        assert await tab.page.locator('[data-do="acknowledge"]').count() == 0
    async with site.connect(Role.READ) as reader:
        status, _ = await reader.act(action="acknowledge")
        assert status == 403
    assert len(await store.rows(10, acknowledged=False)) == 2
