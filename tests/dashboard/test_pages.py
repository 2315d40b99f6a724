"""The pages in a real browser: what they show, how soon, and what can be done on them."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from qts.dashboard import Role
from qts.database import Database
from qts.outbox import TRADE_COMMAND, OutboxAdmin, PermanentError
from qts.risk import FailSafe, KillSwitch, SafetyState
from tests.dashboard.conftest import Site
from tests.dashboard.pace import PATIENCE_S, soonest
from tests.dashboard.test_actions import book, dead_event

PAGES = {
    "overview": "Profit today",
    "events": "EVENT SYSTEM STATUS",
    "feed": "300 symbols every 6.0 s",
    "market": "Market",
    "orders": "Reconcile now",
    "strategies": "rsi_scalper",
    "outbox": "everbit.trade.command",
    "cache": "PreCheck",
    "router": "No run of the router",
    "backtests": "Backtests",
    "settings": "What was done here",
}


def shots(tmp_path: Path) -> Path:
    """Where pictures go: kept when a folder is named."""
    folder = Path(os.environ.get("QTS_TEST_SCREENSHOTS") or tmp_path / "shots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Watched:
    """A page, and everything it did that it should not."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.wrong: list[str] = []
        self._address = address
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("request", self._asked)
        page.on("websocket", self._asked)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"console: {message.text}")

    def _asked(self, request: Any) -> None:
        if request.url.split("//")[1].split("/")[0] != self._address.split("//")[1]:
            self.wrong.append(f"asked another host: {request.url}")

    async def go(self, name: str) -> str:
        """The text of a page once it has its data."""
        await self.page.goto(f"{self._address}/#/{name}")
        room = name.partition("/")[0]
        found = f'main[data-page="{room}"][data-ready]'
        await self.page.wait_for_selector(found, timeout=PATIENCE_S * 1000)
        return str(await self.page.inner_text("main"))

    async def sees(self, selector: str, words: str) -> None:
        await self.page.wait_for_function(
            "([at, words]) => document.querySelector(at)?.innerText.toLowerCase().includes(words)",
            arg=[selector, words.lower()],  # headings are shown in capitals
            timeout=PATIENCE_S * 1000,
        )


@asynccontextmanager
async def visit(
    browser: Any, link: str, width: int = 1366, height: int = 768, **more: Any
) -> AsyncIterator[Watched]:
    """Logged in by the link; nothing wrong may have happened by the end."""
    context = await browser.new_context(viewport={"width": width, "height": height}, **more)
    watched = Watched(await context.new_page(), link.split("/login")[0])
    try:
        await watched.page.goto(link)
        await watched.page.wait_for_url("**/", timeout=PATIENCE_S * 1000)
        await watched.page.wait_for_selector("#banner")
        yield watched
        assert watched.wrong == []
    finally:
        await context.close()


async def test_the_link_logs_in_and_leaves_no_token_behind(site: Site, browser: Any) -> None:
    site.run()
    token = site.tokens.token(Role.ADMIN).reveal()
    async with visit(browser, site.tokens.link(site.address)) as seen:
        assert seen.page.url == f"{site.address}/"
        urls = await seen.page.evaluate("performance.getEntries().map((entry) => entry.name)")
        assert urls
        assert not any(token in url for url in urls)
        assert token not in await seen.page.content()
        kept = await seen.page.evaluate("JSON.stringify([localStorage, sessionStorage])")
        assert token not in kept
        assert await seen.page.evaluate("document.cookie") == ""


async def test_every_page_is_drawn_within_a_second(
    site: Site, browser: Any, tmp_path: Path
) -> None:
    site.run()
    async with visit(browser, site.tokens.link(site.address)) as seen:
        await seen.sees("#top", "PAPER")
        for name, words in PAGES.items():
            elsewhere = partial(seen.go, "feed" if name != "feed" else "cache")
            took = await soonest(partial(seen.go, name), elsewhere)
            assert took < 1.0, f"{name} took {took:.2f} s"
            text = await seen.page.inner_text("main")
            assert words.lower() in text.lower(), f"{name}: {text[:300]}"
            await seen.page.screenshot(path=shots(tmp_path) / f"{name}.png")


async def test_the_event_panel_tells_depth_limit_status_and_rates(site: Site, browser: Any) -> None:
    site.run()
    async with visit(browser, site.tokens.link(site.address)) as seen:
        await seen.go("events")
        await seen.sees("#event-system-status", "5,200")
        rows = await seen.page.locator("#event-system-status tbody tr").all_inner_texts()
        cells = [re.split(r"\s+", row.strip()) for row in rows]
        assert [row[:4] for row in cells] == [
            ["P0", "3", "100", "OK"],
            ["P1", "3", "10,000", "OK"],
            ["P2", "3", "1,000", "OK"],
            ["P3", "3", "50,000", "OK"],
        ]
        assert "2.50 (10)" in rows[0].replace("\t", " ").replace("\n", " ")
        assert "005930" in await seen.page.inner_text("main")


@pytest.mark.parametrize(("width", "height"), [(1366, 768), (390, 844)])
async def test_no_page_is_wider_than_the_screen(
    site: Site, browser: Any, tmp_path: Path, width: int, height: int
) -> None:
    site.run()
    async with visit(browser, site.tokens.link(site.address), width, height) as seen:
        await seen.sees("#top", "PAPER")
        for name in PAGES:
            await seen.go(name)
            over = await seen.page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert over <= 0, f"{name} is {over} px too wide at {width}"
        await seen.go("overview")
        await seen.page.screenshot(path=shots(tmp_path) / f"overview-{width}.png")


async def test_korean_dark_and_light_by_keys(site: Site, browser: Any, tmp_path: Path) -> None:
    site.run()
    async with visit(browser, site.tokens.link(site.address)) as seen:
        await seen.sees("main", "Profit today")
        await seen.page.keyboard.press("l")
        await seen.sees("main", "오늘 손익")
        theme = "document.documentElement.dataset.theme"
        before = await seen.page.evaluate(theme)
        await seen.page.keyboard.press("t")
        assert await seen.page.evaluate(theme) != before
        await seen.page.keyboard.press("2")
        await seen.sees("main", "이벤트 시스템 상태")
        await seen.page.screenshot(path=shots(tmp_path) / "korean.png")
        await seen.page.keyboard.press("l")
        await seen.sees("main", "EVENT SYSTEM STATUS")


async def test_a_fail_safe_is_seen_within_a_second(
    site: Site, browser: Any, tmp_path: Path
) -> None:
    site.run()
    async with visit(browser, site.tokens.link(site.address)) as seen:
        safety = FailSafe(site.database)

        async def calm() -> None:
            await safety.release("test", "looked")
            await seen.sees("#banner", "NORMAL")

        async def fail() -> None:
            await safety.trip("FS070", "books differ")
            await seen.sees("#banner", "FAIL FS070")

        async def failed() -> None:
            await calm()
            await fail()

        async def lock() -> None:
            await safety.trip("FS070", "again")
            await seen.sees("#banner", "LOCKDOWN")

        assert await soonest(fail, calm) < 1.0
        assert await soonest(lock, failed) < 1.0
        await seen.page.screenshot(path=shots(tmp_path) / "lockdown.png")
    assert (await safety.now()).state is SafetyState.LOCKDOWN


async def test_the_worst_notices_stand_out(site: Site, browser: Any) -> None:
    from qts.notify import RecentAlert

    told = [
        RecentAlert(2e9, "critical", "kis stream is cut", "BROKER_DISCONNECT"),
        RecentAlert(1e9, "info", "kis stream is open", "BROKER_CONNECT"),
    ]
    site.run(notices=told)
    async with visit(browser, site.tokens.link(site.address)) as seen:
        await seen.sees("main .notices", "BROKER_DISCONNECT")
        lines = await seen.page.locator(".notices li").all_inner_texts()
        assert ["cut" in line for line in lines] == [True, False]  # the youngest first
        worst = await seen.page.locator(".notices li.critical").all_inner_texts()
        assert worst == lines[:1]


async def test_a_live_account_is_told_in_red(site: Site, browser: Any) -> None:
    site.run(mode="live")
    async with visit(browser, site.tokens.link(site.address)) as seen:
        await seen.page.wait_for_selector(".mode-live")
        colour = "getComputedStyle(document.querySelector('.mode-live')).backgroundColor"
        red, green, blue = map(int, re.findall(r"\d+", await seen.page.evaluate(colour))[:3])
        assert red > 150
        assert max(green, blue) < red / 2


async def test_a_run_that_died_is_told(site: Site, browser: Any) -> None:
    site.run(ttl_ms=1000)
    async with visit(browser, site.tokens.link(site.address)) as seen:
        await seen.sees("#top", "PAPER")
        assert await seen.page.locator("#not-running").count() == 0
        await site.die()  # without a goodbye: the value it told of itself ends by its time
        await seen.sees("#top", "NOT RUNNING")
        await seen.go("feed")
        assert "qts run" in await seen.page.inner_text("main")


async def test_trading_is_stopped_and_allowed_on_the_page(site: Site, browser: Any) -> None:
    await KillSwitch(site.database).enable_unset((), "test")
    site.run()
    async with visit(browser, site.tokens.link(site.address)) as seen:
        await seen.page.click("#kill")
        await seen.page.click("#yes")  # no reason, no deed
        assert (await KillSwitch(site.database).all())["account"].enabled
        await seen.page.fill("#reason", "<b>lunch</b>")
        await seen.page.click("#yes")
        await seen.page.wait_for_selector("#allow")
        await seen.sees("#top", "STOPPED")
        switch = (await KillSwitch(site.database).all())["account"]
        assert (switch.enabled, switch.reason) == (False, "<b>lunch</b>")
        await seen.sees("main", "<b>lunch</b>")  # words, not markup
        await seen.page.click("#allow")
        await seen.page.fill("#reason", "back")
        await seen.page.click("#yes")
        await seen.page.wait_for_selector("#kill")
        assert (await KillSwitch(site.database).all())["account"].enabled
    assert [row["outcome"] for row in await book(site.database)] == ["DONE", "DONE"]


async def test_a_dialog_that_is_left_does_nothing(site: Site, browser: Any) -> None:
    await KillSwitch(site.database).enable_unset((), "test")
    site.run()
    async with visit(browser, site.tokens.link(site.address)) as seen:
        await seen.page.wait_for_selector("#kill")
        await seen.page.keyboard.press("k")
        await seen.page.wait_for_selector("dialog[open]")
        await seen.page.keyboard.press("Escape")
        await seen.page.wait_for_selector("dialog:not([open])", state="attached")
    assert (await KillSwitch(site.database).all())["account"].enabled
    assert await book(site.database) == []


async def test_the_fail_safe_is_released_on_the_page(site: Site, browser: Any) -> None:
    await FailSafe(site.database).trip("FS070", "books differ")
    async with visit(browser, site.tokens.link(site.address)) as seen:
        await seen.page.click("#release")
        await seen.page.fill("#reason", "compared by hand")
        await seen.page.click("#yes")
        await seen.sees("#banner", "NORMAL")
    assert (await FailSafe(site.database).now()).state is SafetyState.NORMAL


async def test_a_dead_event_is_requeued_on_the_page(site: Site, browser: Any) -> None:
    event = await dead_event(site.database, PermanentError("no"))
    async with visit(browser, site.tokens.link(site.address)) as seen:
        await seen.go("outbox")
        await seen.page.click('[data-do="requeue"]')
        await seen.page.click("#yes")
        await seen.sees("#toast", "PENDING")
    assert (await OutboxAdmin(site.database).show(event)).status == "PENDING"


async def test_reconcile_is_asked_for_on_the_page_and_there_is_no_order_button(
    site: Site, browser: Any
) -> None:
    async with visit(browser, site.tokens.link(site.address)) as seen:
        await seen.go("orders")
        await seen.page.click("#reconcile")
        await seen.sees("#toast", "compared")
        deeds = set()
        for name in PAGES:
            await seen.go(name)
            find = "[...document.querySelectorAll('[data-do]')].map((each) => each.dataset.do)"
            deeds |= set(await seen.page.evaluate(find))
        assert not {deed for deed in deeds if "order" in deed}
    (row,) = await OutboxAdmin(site.database).find(stream=TRADE_COMMAND)
    assert row.event_type == "Reconcile"


async def test_a_parameter_is_set_on_the_page(site: Site, browser: Any) -> None:
    site.run()
    async with visit(browser, site.tokens.link(site.address)) as seen:
        await seen.go("strategies")
        field = 'input[data-strategy="rsi_scalper"][data-param="length"]'
        await seen.page.fill(field, "1")
        await seen.page.click('[data-do="params"]')
        await seen.sees("#toast", "at least 2")
        await seen.page.fill(field, "21")
        clock = await seen.page.inner_text("#top .clock")
        await seen.page.wait_for_function(
            "(before) => document.querySelector('#top .clock').innerText !== before", arg=clock
        )  # another state has come: what is typed must stay
        assert await seen.page.input_value(field) == "21"
        await seen.page.click('[data-do="params"]')
        await seen.sees("#toast", "length = 21")
        seen.wrong.clear()  # the refusal is a 422, and the console says so
    row = await site.database.fetchrow("SELECT params FROM strategy_params")
    assert row is not None
    assert row["params"] == {"length": 21}
    assert [each["outcome"] for each in await book(site.database)] == ["REFUSED", "DONE"]


async def unknown_order(database: Database) -> UUID:
    intent, signal, attempt = uuid4(), uuid4(), uuid4()
    await database.execute(
        "INSERT INTO signal (id, strategy_key, symbol, side, reason, decided_at)"
        " VALUES ($1, 'rsi_scalper', '005930', 'BUY', 'turned', now())",
        signal,
    )
    await database.execute(
        "INSERT INTO order_intent (id, signal_id, intent_type, broker, strategy_key, symbol, side,"
        " order_type, quantity, approved_at, expires_at) VALUES ($1, $2, 'ENTRY', 'paper',"
        " 'rsi_scalper', '005930', 'BUY', 'MARKET', 10, now(), now() + interval '5 s')",
        intent,
        signal,
    )
    await database.execute(
        "INSERT INTO order_attempt (id, order_intent_id, attempt_no, broker, symbol, identifier,"
        " request_json) VALUES ($1, $2, 1, 'paper', '005930', 'a-1', '{\"identifier\": \"a-1\"}')",
        attempt,
        intent,
    )
    await database.execute("UPDATE order_attempt SET status = 'SENT', sent_at = now()")
    await database.execute("UPDATE order_attempt SET status = 'UNKNOWN', error_message = 'silence'")
    return intent


async def test_an_unknown_order_is_yellow_and_has_its_timeline(
    site: Site, browser: Any, tmp_path: Path
) -> None:
    intent = await unknown_order(site.database)
    async with visit(browser, site.tokens.link(site.address)) as seen:
        await seen.go("orders")
        await seen.page.wait_for_selector("tr.unknown")
        cell = "getComputedStyle(document.querySelector('tr.unknown .chip.unknown'))"
        found = await seen.page.evaluate(f"{cell}.backgroundColor")
        red, green, blue = map(int, re.findall(r"\d+", found)[:3])
        assert min(red, green) > 1.5 * blue
        await seen.go(f"orders/{intent}")
        await seen.sees("main", "silence")
        text = await seen.page.inner_text("main")
        places = [text.index(word) for word in ("signal", "intent", "attempt 1", "silence")]
        assert places == sorted(places)
        await seen.page.screenshot(path=shots(tmp_path) / "order.png")


async def test_who_may_only_read_is_told_so(site: Site, browser: Any) -> None:
    await KillSwitch(site.database).enable_unset((), "test")
    async with visit(browser, site.tokens.link(site.address, Role.READ)) as seen:
        await seen.page.click("#kill")
        await seen.page.fill("#reason", "x")
        await seen.page.click("#yes")
        await seen.sees("#toast", "needs the role trade")
        seen.wrong.clear()  # the refusal is a 403, and the console says so
    assert (await KillSwitch(site.database).all())["account"].enabled
