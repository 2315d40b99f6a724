"""The page makes no false statement: what is unknown is shown as unknown, what is old as old.

Each test breaks one link between the run and the eye in a real browser. A recorder in the page
keeps every text that was shown meanwhile.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from qts.brokers import AccountLease
from qts.cache import StoreWrite
from qts.dashboard import DashboardConfig
from qts.dashboard.live_status import encode
from qts.domain import Secret, SystemClock
from qts.risk import KillSwitch
from tests.accounts import PAPER
from tests.dashboard import statuses
from tests.dashboard.conftest import Site, opened
from tests.dashboard.tcp_proxy import TcpProxy
from tests.dashboard.test_pages import BrowserTab, visit

RECORDER = """
window.seen = new Set();
new MutationObserver(() => {
  const parts = ["#top", "#page", "#confirm"].map((at) => document.querySelector(at));
  const text = parts.map((each) => each?.textContent).join(" ");
  window.seen.add(`${document.title}\\n${text}`);
}).observe(document, { subtree: true, childList: true, characterData: true, attributes: true });
"""
AGED = "() => document.querySelector('#ages').textContent !== ''"
NEVER = ("undefined", "NaN", "null", "[object")


class Watched:
    """A page with a record of what it showed."""

    def __init__(self, tab: BrowserTab) -> None:
        self.tab, self.page = tab, tab.page

    async def until(self, state: str) -> None:
        """Wait for a sentence: trading, exits_only, stopped, unknown or lost."""
        await self.page.wait_for_selector(f"#verdict.{state}", timeout=30_000)

    async def forget(self) -> None:
        await self.page.evaluate("window.seen.clear()")

    async def shown(self) -> str:
        """Return everything that was shown since `forget`, texts and titles."""
        found: list[str] = await self.page.evaluate("[...window.seen]")
        text = "\n".join(found)
        assert not [word for word in NEVER if word in text]
        return text

    async def greyed(self) -> bool:
        """Return whether all figures of the run are grey; fail if only some are."""
        found: list[str] = await self.page.evaluate(
            "[...document.querySelectorAll('[data-from=run]')]"
            ".map((each) => getComputedStyle(each).filter)"
        )
        assert found
        assert len(set(found)) == 1, found
        return found[0] == "grayscale(1)"

    async def icon(self) -> str:
        return str(await self.page.evaluate("document.querySelector('link[rel=icon]').href"))

    async def equity(self) -> str:
        return str(await self.page.inner_text(".figures.wide .figure:nth-child(2) b"))


class Line:
    """WebSocket of the page, under control of the test."""

    def __init__(self) -> None:
        self.is_blocked = False
        self.delay_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: list[Any] = []

    async def route(self, socket: Any) -> None:
        if self.is_blocked:
            await socket.close()
            return
        server = socket.connect_to_server()
        self._open.append(socket)
        server.on_message(lambda text: self._later(socket, text))

    def _later(self, socket: Any, text: str) -> None:
        async def deliver() -> None:
            await asyncio.sleep(self.delay_s)
            if not self.is_blocked:
                socket.send(text)

        task = asyncio.create_task(deliver())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def reopen(self) -> None:
        """End the connections: the page connects again."""
        self.is_blocked = False
        for socket in self._open:
            await socket.close()
        self._open.clear()


@asynccontextmanager
async def watching(
    browser: Any, site: Site, line: Line | None = None, script: str = ""
) -> AsyncIterator[Watched]:
    def prepare(page: Any) -> list[Any]:
        steps = [page.add_init_script(RECORDER + script)]
        if line is not None:
            steps.append(page.route_web_socket("**/api/live", line.route))
        return steps

    async with visit(browser, site.tokens.link(site.address), prepare=prepare) as tab:
        yield Watched(tab)
        tab.problems.clear()  # a cut connection is logged by the browser


@pytest.fixture(autouse=True)
async def allowed(site: Site) -> None:
    await KillSwitch(site.database, PAPER).enable_unset((), "test")


async def test_a_socket_blocked_from_the_start(site: Site, browser: Any) -> None:
    site.run()
    line = Line()
    line.is_blocked = True
    async with watching(browser, site, line) as seen:
        await seen.until("lost")
        assert await seen.page.title() == "No connection · QTS"
        assert (await seen.icon()).endswith("icon-unknown.svg")
        assert not any(each.isdigit() for each in await seen.equity())
        shown = await seen.shown()
        for false in ("STOPPED", "NOT RUNNING", "No alerts", "NORMAL", "QTS does not run"):
            assert false not in shown
        assert "Unknown whether trading is allowed" in shown
        await seen.page.click("#stop")  # trading can be stopped all the same
        await seen.page.fill("#reason", "no connection")
        await seen.page.keyboard.press("Enter")
        await seen.tab.wait_text("#toast", "account is stopped")
    assert not (await KillSwitch(site.database, PAPER).all())["account"].enabled


async def test_a_socket_blocked_later(site: Site, browser: Any) -> None:
    site.run()
    line = Line()
    async with watching(browser, site, line) as seen:
        await seen.until("trading")
        assert not await seen.greyed()
        equity = await seen.equity()
        line.is_blocked = True  # open, and silent
        await seen.until("lost")
        await seen.page.wait_for_function(AGED)
        assert await seen.greyed()
        assert await seen.equity() == equity  # the last one, as an old one
        await seen.forget()
        assert "NORMAL" not in await seen.page.inner_text("#top")
        await line.reopen()
        await seen.until("trading")
        assert "STOPPED" not in await seen.shown()
        assert not await seen.greyed()


async def test_a_slow_connection(site: Site, browser: Any) -> None:
    """What arrives four seconds late is four seconds old, however often it arrives."""
    site.run()
    line = Line()
    line.delay_s = 4.0
    async with watching(browser, site, line) as seen:
        await seen.page.wait_for_function(AGED)
        assert await seen.greyed()
        shown = await seen.shown()
        assert "Trading · QTS" not in shown
        assert "QTS trades with" not in shown
        line.delay_s = 0.3
        await seen.until("trading")
        assert not await seen.greyed()


async def test_a_run_that_was_killed(site: Site, browser: Any) -> None:
    async with watching(browser, site) as seen:
        async with AccountLease(site.database, PAPER, "home", SystemClock(), is_live=False):
            site.run()
            await seen.until("trading")
            await seen.forget()
            assert (await seen.icon()).endswith("icon.svg")
            await site.stop()  # hangs: it holds its account, and its status gets old
            await seen.tab.wait_text(
                "#verdict", "Unknown whether QTS trades: a run holds the account"
            )
            assert await seen.greyed()
            assert "NOT RUNNING" not in await seen.shown()
        await seen.until("stopped")  # killed: PostgreSQL has ended its lock
        assert await seen.page.title() == "Stopped · QTS"
        assert await seen.page.inner_text("#not-running") == "NOT RUNNING"
        assert await seen.greyed()
        assert "P1 is 81 % full" in await seen.page.inner_text(".alerts")  # alerts stay
        await seen.page.wait_for_function(
            "() => /are old: ([6-9]|\\d\\d) s/.test(document.querySelector('#ages').textContent)"
        )  # the status has expired, and its age goes on


async def test_a_database_that_is_gone(site: Site, browser: Any, postgres_admin: Any) -> None:
    name = await site.database.fetchval("SELECT current_database()")
    site.run()
    async with watching(browser, site) as seen:
        await seen.until("trading")
        await seen.forget()
        await postgres_admin.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS false')
        try:
            await postgres_admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name
            )
            await seen.tab.wait_text("#banner", "DATABASE")
            await seen.tab.wait_text("main", "Unknown whether trading is allowed")
            shown = await seen.shown()
            assert "Trading is STOPPED" not in shown
            assert "NOT RUNNING" not in shown
            await site.stop()  # with the status gone too, nothing is known
            await seen.until("unknown")
        finally:
            await postgres_admin.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS true')
        site.run()
        await seen.until("trading")


async def test_a_valkey_that_is_gone(
    site: Site, browser: Any, valkey_url: Secret, tmp_path: Path
) -> None:
    async with TcpProxy.to(valkey_url.reveal()) as proxy:
        prefix, home = f"qts-truth-{os.getpid()}:", tmp_path / "other"
        home.mkdir()
        opening = opened(site.database, Secret(proxy.url), home, DashboardConfig(port=0), prefix)
        lock = AccountLease(site.database, PAPER, "home", SystemClock(), is_live=False)
        async with lock, opening as other, watching(browser, other) as seen:
            other.run()
            await seen.until("trading")
            await seen.forget()
            await other.stop()
            proxy.is_blocked = True
            proxy.cut()
            await seen.tab.wait_text("#verdict", "Unknown whether QTS trades")
            await seen.tab.wait_text("#verdict", "its status cannot be read")
            assert await seen.greyed()
            assert await seen.page.inner_text("#banner") == "NORMAL"  # of the database
            shown = await seen.shown()
            for false in ("NOT RUNNING", "STOPPED", "does not run"):
                assert false not in shown
            proxy.is_blocked = False
            other.run()
            await seen.until("trading")


async def test_a_hub_fed_with_garbage(site: Site, browser: Any) -> None:
    key, whole = f"{site.prefix}live", encode(statuses.live())
    garbage = ("", "no JSON", "{}", "[1]", whole[: len(whole) // 2], '{"at": "x"}', "\\ud800")
    lock = AccountLease(site.database, PAPER, "home", SystemClock(), is_live=False)
    async with lock, watching(browser, site) as seen:
        site.run()
        await seen.until("trading")
        await site.stop()
        await seen.forget()
        for number, text in enumerate(garbage):
            version = int(1e14) + number
            fields = {"ver": str(version), "json": text}
            await site.store.write([StoreWrite.of(key, version, 5000, fields)])
            await seen.tab.wait_text("#verdict", "cannot be read")
            assert await seen.greyed()
        assert "NOT RUNNING" not in await seen.shown()
        await site.store.delete([key])
        site.run()
        await seen.until("trading")
        assert not await seen.greyed()
    assert not site.dashboard.failed.is_set()


async def test_a_wrong_clock_of_the_browser(site: Site, browser: Any) -> None:
    site.run()
    wrong = """
    const real = Date.now; window.ahead = -86400000; Date.now = () => real() + window.ahead;
    """
    async with watching(browser, site, script=wrong) as seen:
        await seen.until("trading")
        assert not await seen.greyed()
        await seen.page.evaluate("window.ahead = 86400000")  # set, while the page is open
        await seen.until("trading")
        await seen.page.evaluate("window.ahead = -86400000")  # a page that adds up is not fooled
        await site.stop()
        await seen.until("stopped")
        assert await seen.greyed()
        text = await seen.page.inner_text("#ages")
        assert int("".join(filter(str.isdigit, text))) < 60
