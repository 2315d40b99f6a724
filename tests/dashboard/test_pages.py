"""The pages in a real browser: their content, speed and actions."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from qts.dashboard import Role
from qts.outbox import TRADE_COMMAND, OutboxAdmin, PermanentError
from qts.risk import FailSafe, KillSwitch, SafetyState
from tests.accounts import PAPER
from tests.dashboard.conftest import Site
from tests.dashboard.test_actions import action_rows, dead_event
from tests.dashboard.timing import TIMEOUT_S, fastest

PAGES = {
    "overview": "Profit today",
    "events": "EVENT SYSTEM STATUS",
    "feed": "300 symbols every 6.0 s",
    "market": "Market",
    "orders": "Reconcile now",
    "trades": "Average trade",
    "strategies": "rsi_scalper",
    "outbox": "everbit.trade.command",
    "cache": "PreCheck",
    "router": "No router run",
    "backtests": "Backtests",
    "logs": "standard error",
    "settings": "Operator actions",
    "runs": "Sums by mode and currency",
}

VISIT_S = 100.0  # of all that a test does on a page; the time limit of a test is 120 s
CLOSE_S = 10.0


async def shoot(page: Any, name: str, **more: Any) -> None:
    """Take a screenshot where a folder for them is given."""
    if folder := os.environ.get("QTS_TEST_SCREENSHOTS"):
        await page.screenshot(path=Path(folder, name), **more)


class BrowserTab:
    """Page of a browser, with the problems it logged."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.problems: list[str] = []
        self._address = address
        self._listeners: dict[str, Callable[[Any], None]] = {
            "console": self._on_console,
            "pageerror": lambda error: self.problems.append(f"error: {error}"),
            "request": self._on_request,
            "websocket": self._on_request,
        }
        for event, listener in self._listeners.items():
            page.on(event, listener)

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def _on_request(self, request: Any) -> None:
        if request.url.split("//")[1].split("/")[0] != self._address.split("//")[1]:
            self.problems.append(f"asked another host: {request.url}")

    async def leave(self) -> bool:
        """Log out, empty the page and return whether another visit can use it."""
        from playwright.async_api import Error

        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self.page.unroute_all(behavior="ignoreErrors")
                await self.page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
                await self.page.context.clear_cookies()
                # Of the same site as the next address: Chromium keeps the process of the page.
                await self.page.goto(f"{self._address}/page/icon.svg")
        except (Error, TimeoutError):  # the dashboard has ended, or the page no longer answers
            return False
        return True

    async def open(self, name: str) -> str:
        """Open a page and return its text once it has its data."""
        await self.page.goto(f"{self._address}/#/{name}")
        page = name.partition("/")[0]
        found = f'main[data-page="{page}"][data-ready]'
        await self.page.wait_for_selector(found, timeout=TIMEOUT_S * 1000)
        return str(await self.page.inner_text("main"))

    async def wait_text(self, selector: str, text: str) -> None:
        await self.page.wait_for_function(
            "([at, text]) => document.querySelector(at)?.innerText.toLowerCase().includes(text)",
            arg=[selector, text.lower()],  # headings are shown in capitals
            timeout=TIMEOUT_S * 1000,
        )


@asynccontextmanager
async def visit(
    browser: Any,
    link: str,
    width: int = 1366,
    height: int = 768,
    prepare: Callable[[Any], Iterable[Awaitable[None]]] | None = None,
    **more: Any,
) -> AsyncIterator[BrowserTab]:
    """Log in with the link; fail if the page logged a problem. `prepare` gets a new, empty page."""
    options = repr(sorted(more.items()))
    page = None
    try:
        # Some calls of Playwright wait without end: the error names the one that did.
        async with asyncio.timeout(VISIT_S):
            page = None if prepare else _left.pop(options, None)
            if page is None or not await _answers(page):
                page = await (await browser.new_context(**more)).new_page()
            await page.set_viewport_size({"width": width, "height": height})
            tab = BrowserTab(page, link.split("/login")[0])
            for step in prepare(page) if prepare else ():
                await step
            await page.goto(link)
            await page.wait_for_url("**/", timeout=TIMEOUT_S * 1000)
            await page.wait_for_selector("#banner")
            yield tab
        assert tab.problems == []
        if prepare is None and await tab.leave():
            _left[options] = page
    finally:
        if page is not None and page not in _left.values():
            with suppress(TimeoutError):  # a page that hangs does not close either
                async with asyncio.timeout(CLOSE_S):
                    await page.context.close()


async def _answers(page: Any) -> bool:
    """Return whether the page of an earlier visit still answers."""
    from playwright.async_api import Error

    with suppress(Error, TimeoutError):
        async with asyncio.timeout(TIMEOUT_S):
            return bool(await page.evaluate("true"))
    return False


# Empty pages of earlier visits, by the options of their contexts: a new page takes a second of CPU.
_left: dict[str, Any] = {}


async def test_the_link_logs_in_and_the_token_is_not_stored(site: Site, browser: Any) -> None:
    site.run()
    token = site.tokens.token(Role.ADMIN).reveal()
    async with visit(browser, site.tokens.link(site.address)) as tab:
        assert tab.page.url == f"{site.address}/"
        urls = await tab.page.evaluate("performance.getEntries().map((entry) => entry.name)")
        assert urls
        assert not any(token in url for url in urls)
        assert token not in await tab.page.content()
        stored = await tab.page.evaluate("JSON.stringify([localStorage, sessionStorage])")
        assert token not in stored
        assert await tab.page.evaluate("document.cookie") == ""


async def test_every_page_is_drawn_within_a_second(site: Site, browser: Any) -> None:
    site.run()
    async with visit(browser, site.tokens.link(site.address)) as tab:
        await tab.wait_text("#top", "PAPER")
        for name, words in PAGES.items():
            elsewhere = partial(tab.open, "feed" if name != "feed" else "cache")
            took = await fastest(partial(tab.open, name), elsewhere)
            assert took < 1.0, f"{name} took {took:.2f} s"
            text = await tab.page.inner_text("main")
            assert words.lower() in text.lower(), f"{name}: {text[:300]}"
            await shoot(tab.page, f"{name}.png")


async def test_the_event_panel_shows_depth_limit_status_and_rates(site: Site, browser: Any) -> None:
    site.run()
    async with visit(browser, site.tokens.link(site.address)) as tab:
        await tab.open("events")
        await tab.wait_text("#event-system-status", "5,200")
        rows = await tab.page.locator("#event-system-status tbody tr").all_inner_texts()
        cells = [re.split(r"\s+", row.strip()) for row in rows]
        assert [row[:4] for row in cells] == [
            ["P0", "3", "100", "OK"],
            ["P1", "3", "10,000", "OK"],
            ["P2", "3", "1,000", "OK"],
            ["P3", "3", "50,000", "OK"],
        ]
        assert "2.50 (10)" in rows[0].replace("\t", " ").replace("\n", " ")
        assert "005930" in await tab.page.inner_text("main")


@pytest.mark.parametrize(("width", "height"), [(1366, 768), (390, 844)])
async def test_no_page_is_wider_than_the_screen(
    site: Site, browser: Any, width: int, height: int
) -> None:
    site.run()
    async with visit(browser, site.tokens.link(site.address), width, height) as tab:
        await tab.wait_text("#top", "PAPER")
        for name in PAGES:
            await tab.open(name)
            over = await tab.page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert over <= 0, f"{name} is {over} px too wide at {width}"
        await tab.open("overview")
        await shoot(tab.page, f"overview-{width}.png")


async def test_korean_dark_and_light_by_keys(site: Site, browser: Any) -> None:
    site.run()
    async with visit(browser, site.tokens.link(site.address)) as tab:
        await tab.wait_text("main", "Profit today")
        await tab.page.keyboard.press("l")
        await tab.wait_text("main", "오늘 손익")
        theme = "document.documentElement.dataset.theme"
        before = await tab.page.evaluate(theme)
        await tab.page.keyboard.press("t")
        assert await tab.page.evaluate(theme) != before
        await tab.page.keyboard.press("2")
        await tab.wait_text("main", "이벤트 시스템 상태")
        await shoot(tab.page, "korean.png")
        await tab.page.keyboard.press("l")
        await tab.wait_text("main", "EVENT SYSTEM STATUS")


async def test_a_fail_safe_is_shown_within_a_second(site: Site, browser: Any) -> None:
    site.run()
    async with visit(browser, site.tokens.link(site.address)) as tab:
        safety = FailSafe(site.database, PAPER)

        async def release() -> None:
            await safety.release("test", "checked")
            await tab.wait_text("#banner", "NORMAL")

        async def fail() -> None:
            await safety.trip("FS070", "positions differ")
            await tab.wait_text("#banner", "FAIL FS070")

        async def failed() -> None:
            await release()
            await fail()

        async def lock() -> None:
            await safety.trip("FS070", "again")
            await tab.wait_text("#banner", "LOCKDOWN")

        assert await fastest(fail, release) < 1.0
        assert await fastest(lock, failed) < 1.0
        await shoot(tab.page, "lockdown.png")
    assert (await safety.now()).state is SafetyState.LOCKDOWN


async def test_critical_alerts_stand_out(site: Site, browser: Any) -> None:
    from qts.notify import RecentAlert

    alerts = [
        RecentAlert(2e9, "critical", "kis stream is cut", "BROKER_DISCONNECT"),
        RecentAlert(1e9, "info", "kis stream is open", "BROKER_CONNECT"),
    ]
    site.run(notices=alerts)
    async with visit(browser, site.tokens.link(site.address)) as tab:
        await tab.wait_text("main .alerts", "BROKER_DISCONNECT")
        lines = await tab.page.locator(".alerts li").all_text_contents()
        assert ["cut" in line for line in lines] == [True, False]  # newest first
        worst = await tab.page.locator(".alerts li.critical").all_text_contents()
        assert worst == lines[:1]


async def test_a_simulated_market_is_called_simulated(site: Site, browser: Any) -> None:
    site.run(simulated=True)
    async with visit(browser, site.tokens.link(site.address)) as tab:
        await tab.wait_text("#top", "SIMULATED")
        assert "PAPER" not in await tab.page.inner_text("#top")


async def test_a_live_account_is_shown_in_red(site: Site, browser: Any) -> None:
    site.run(mode="live")
    async with visit(browser, site.tokens.link(site.address)) as tab:
        await tab.page.wait_for_selector(".mode-live")
        colour = "getComputedStyle(document.querySelector('.mode-live')).backgroundColor"
        red, green, blue = map(int, re.findall(r"\d+", await tab.page.evaluate(colour))[:3])
        assert red > 150
        assert max(green, blue) < red / 2


async def test_a_run_that_died_is_shown(site: Site, browser: Any) -> None:
    site.run(ttl_ms=1000)
    async with visit(browser, site.tokens.link(site.address)) as tab:
        await tab.wait_text("#top", "PAPER")
        assert await tab.page.inner_text("#account") == "paper:9f86d081"
        assert await tab.page.locator("#not-running").count() == 0
        await site.stop()  # a crash: its status expires
        await tab.wait_text("#top", "NOT RUNNING")
        await tab.open("feed")
        assert "300 symbols every" in await tab.page.inner_text("main")  # the last figures, in grey
        assert "old" in await tab.page.inner_text("#ages")


async def test_trading_is_stopped_and_allowed_on_the_page(site: Site, browser: Any) -> None:
    await KillSwitch(site.database, PAPER).enable_unset((), "test")
    site.run()
    async with visit(browser, site.tokens.link(site.address)) as tab:
        await tab.wait_text("#top", "PAPER")  # the status is there, and its positions
        await tab.page.click("#kill")
        text = await tab.page.inner_text("#confirm")
        assert "Stops do not sell either" in text
        assert "1 open positions stay" in text
        assert "undefined" not in text
        await tab.page.click("#yes")  # refused without a reason
        assert (await KillSwitch(site.database, PAPER).all())["account"].enabled
        await tab.page.fill("#reason", "<b>lunch</b>")
        await tab.page.keyboard.press("Enter")
        await tab.page.wait_for_selector("#allow")
        await tab.wait_text("#verdict", "the kill switch is on (<b>lunch</b>")
        switch = (await KillSwitch(site.database, PAPER).all())["account"]
        assert (switch.enabled, switch.reason) == (False, "<b>lunch</b>")
        await tab.wait_text("main", "<b>lunch</b>")  # text, not markup
        await tab.page.click("#allow")
        assert await tab.page.get_attribute("#yes", "class") == "go"  # not a dangerous one
        await tab.page.fill("#reason", "back")
        await tab.page.click("#yes")
        await tab.page.wait_for_selector("#kill")
        assert (await KillSwitch(site.database, PAPER).all())["account"].enabled
    assert [row["outcome"] for row in await action_rows(site.database)] == ["DONE", "DONE"]


async def test_a_cancelled_dialog_does_nothing(site: Site, browser: Any) -> None:
    await KillSwitch(site.database, PAPER).enable_unset((), "test")
    site.run()
    async with visit(browser, site.tokens.link(site.address)) as tab:
        await tab.page.wait_for_selector("#kill")
        await tab.page.keyboard.press("k")
        await tab.page.wait_for_selector("dialog[open]")
        await tab.page.keyboard.press("Escape")
        await tab.page.wait_for_selector("dialog:not([open])", state="attached")
    assert (await KillSwitch(site.database, PAPER).all())["account"].enabled
    assert await action_rows(site.database) == []


async def test_the_fail_safe_is_released_on_the_page(site: Site, browser: Any) -> None:
    await FailSafe(site.database, PAPER).trip("FS070", "positions differ")
    async with visit(browser, site.tokens.link(site.address)) as tab:
        await tab.page.click("#release")
        await tab.page.fill("#reason", "checked manually")
        await tab.page.click("#yes")
        await tab.wait_text("#banner", "NORMAL")
    assert (await FailSafe(site.database, PAPER).now()).state is SafetyState.NORMAL


async def test_a_dead_event_is_requeued_on_the_page(site: Site, browser: Any) -> None:
    event = await dead_event(site.database, PermanentError("no"))
    async with visit(browser, site.tokens.link(site.address)) as tab:
        await tab.open("outbox")
        await tab.page.click('[data-do="requeue"]')
        await tab.page.click("#yes")
        await tab.wait_text("#toast", "PENDING")
    assert (await OutboxAdmin(site.database).show(event)).status == "PENDING"


async def test_reconcile_on_the_page_and_no_order_button(site: Site, browser: Any) -> None:
    async with visit(browser, site.tokens.link(site.address)) as tab:
        await tab.open("orders")
        await tab.page.click("#reconcile")
        await tab.wait_text("#toast", "requested")
        actions = set()
        for name in PAGES:
            await tab.open(name)
            find = "[...document.querySelectorAll('[data-do]')].map((each) => each.dataset.do)"
            actions |= set(await tab.page.evaluate(find))
        assert not {each for each in actions if "order" in each}
    (row,) = await OutboxAdmin(site.database).find(stream=TRADE_COMMAND)
    assert row.event_type == "Reconcile"


async def test_a_parameter_is_set_on_the_page(site: Site, browser: Any) -> None:
    site.run()
    async with visit(browser, site.tokens.link(site.address)) as tab:
        await tab.open("strategies")
        field = 'input[data-strategy="rsi_scalper"][data-param="length"]'
        await tab.page.fill(field, "1")
        await tab.page.click('[data-do="params"]')
        await tab.page.click("#yes")
        await tab.wait_text("#toast", "at least 2")
        await tab.page.fill(field, "many")
        await tab.page.click('[data-do="params"]')
        await tab.wait_text("#toast", "length is many; expected integer")
        await tab.page.fill(field, "21")
        clock = await tab.page.inner_text("#top .clock")
        await tab.page.wait_for_function(
            "(before) => document.querySelector('#top .clock').innerText !== before", arg=clock
        )  # a new status arrived; the input must stay
        assert await tab.page.input_value(field) == "21"
        await tab.page.click('[data-do="params"]')
        await tab.wait_text("#confirm", "length = 21")
        await tab.page.click("#yes")
        await tab.wait_text("#toast", "length = 21")
        tab.problems.clear()  # the refusal is a 422, which the console logs
    row = await site.database.fetchrow("SELECT params FROM strategy_params")
    assert row is not None
    assert row["params"] == {"length": 21}
    assert [each["outcome"] for each in await action_rows(site.database)] == ["REFUSED", "DONE"]


async def test_the_read_role_sees_no_action(site: Site, browser: Any) -> None:
    await KillSwitch(site.database, PAPER).enable_unset((), "test")
    await dead_event(site.database, PermanentError("no"))
    site.run()
    async with visit(browser, site.tokens.link(site.address, Role.READ)) as tab:
        await tab.wait_text("#top", "PAPER")
        for name in PAGES:
            await tab.open(name)
            find = "[...document.querySelectorAll('[data-do]')].map((each) => each.dataset.do)"
            found = set(await tab.page.evaluate(find))
            display = {"theme", "language", "colours", "logout", "skip", "more"}
            assert found <= display | {"filter-open", "bar", "span", "trades-span"}, name
        await tab.page.keyboard.press("k")
        assert not await tab.page.evaluate("document.getElementById('confirm').open")
    assert (await KillSwitch(site.database, PAPER).all())["account"].enabled
