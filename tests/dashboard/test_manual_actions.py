"""Close and Flatten in a real browser and by a program, on a whole run.

The paper venue's own lists decide.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from qts.client import Client, RequestError
from tests.acceptance.runs import VENUE, Run, running
from tests.acceptance.test_manual_orders import ORDERS, SETTINGS, STOCKS, Line, buy, limit_below
from tests.dashboard.test_pages import shoot, visit


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run with three positions and two open orders."""
    home = tmp_path_factory.mktemp("manual").resolve() / "home"
    enabled = {"QTS_DASHBOARD__ENABLED": "true", "QTS_DASHBOARD__PORT": "0"}
    with running(home, **SETTINGS, **enabled) as found:
        found.until("Ready")
        qts = Line(home)
        for symbol in STOCKS:
            buy(qts, symbol, 2)
        for symbol in STOCKS[:2]:
            buy(qts, symbol, 1, "--limit", limit_below(found, symbol))
        yield found


async def link(run: Run, role: str) -> str:
    code, printed = await asyncio.to_thread(Line(run.home), "dashboard", "--link", role)
    assert code == 0, printed
    return printed


async def test_the_read_role_sees_no_action(run: Run, browser: Any) -> None:
    async with visit(browser, await link(run, "read")) as tab:
        await tab.wait_text("main", STOCKS[0])
        for name in ("close", "cancel", "kill"):
            assert await tab.page.locator(f'[data-do="{name}"]').count() == 0


async def test_a_position_is_closed_and_the_account_flattened(run: Run, browser: Any) -> None:
    async with visit(browser, await link(run, "trade"), 1600, 1100) as tab:
        page = tab.page
        await page.wait_for_selector(f'[data-do="close"][data-symbol="{STOCKS[0]}"]')
        await page.wait_for_selector('[data-do="cancel"]')

        # One, by the keyboard alone.
        await page.focus(f'[data-do="close"][data-symbol="{STOCKS[0]}"]')
        await page.keyboard.press("Enter")
        text = await page.inner_text("#confirm")
        for part in (f"({STOCKS[0]}) ≈ ₩", "may buy again"):
            assert part in text, text
        assert "cancelled: 1." in text
        await page.keyboard.press("Enter")  # without a reason nothing is done
        assert await page.is_visible("#confirm")
        await page.keyboard.type("earnings tonight")
        await page.keyboard.press("Enter")
        await tab.wait_text("#toast", f"SELL 2 {STOCKS[0]} filled; 1 open order cancelled")

        closed = f'[data-do="close"][data-symbol="{STOCKS[0]}"]'
        await page.wait_for_selector(closed, state="detached")
        # The position and its open order leave the page with two answers of the dashboard.
        await page.wait_for_function(
            "() => document.querySelectorAll('[data-do=cancel]').length === 1"
        )
        await page.click("#flatten")
        text = await page.inner_text("#confirm")
        assert "Open orders that are cancelled: 1. Positions that are sold at the market: 2" in text
        await page.fill("#reason", "leaving for the day")
        await shoot(page, "flatten.png")
        await page.keyboard.press("Enter")
        await tab.wait_text("#toast", "1 open order cancelled")
        await tab.wait_text("main", "No open positions")
        await shoot(page, "flattened.png")
        await tab.open("settings")
        await tab.wait_text("main", "leaving for the day")
        await tab.wait_text("main", "earnings tonight")
    assert await asyncio.to_thread(run.query, VENUE) == []
    orders = await asyncio.to_thread(run.query, ORDERS)
    assert sorted((row["side"], row["state"]) for row in orders) == sorted(
        [("BUY", "FILLED")] * 3 + [("BUY", "CANCELLED")] * 2 + [("SELL", "FILLED")] * 3
    )
    log = "SELECT actor, role, target, detail, outcome FROM dashboard_action WHERE action = 'close'"
    rows = await asyncio.to_thread(run.query, f"{log} ORDER BY id")
    assert [(row["target"], row["outcome"]) for row in rows] == [
        (STOCKS[0], "DONE"),
        ("all", "DONE"),
    ]
    assert all(row["actor"].startswith("dashboard trade ") for row in rows)


async def test_a_program_places_once_and_flattens(run: Run) -> None:
    """Two requests with one Idempotency-Key at the same time are one order at the venue."""
    await asyncio.to_thread(_trade_by_program, run, Line(run.home))


def _trade_by_program(run: Run, qts: Line) -> None:
    create = ("dashboard", "token", "create", "--name", "bot", "--role", "trade")
    code, printed = qts(*create, "--json")
    assert code == 0, printed
    token = json.loads(printed)["token"]
    assert qts(*create)[0] == 2  # the name is taken
    listed = qts("dashboard", "token", "list")
    assert (listed[0], "bot" in listed[1], token in listed[1]) == (0, True, False)
    address = (run.home / "dashboard.address").read_text().strip()
    before = len(run.query(ORDERS))
    with Client(address, token) as first, Client(address, token) as second:
        with ThreadPoolExecutor() as threads:
            placed = [
                threads.submit(bot.place, STOCKS[0], "BUY", 2, reason="rebalance", key="one")
                for bot in (first, second)
            ]
            results = [each.result() for each in placed]
        assert results[0] == results[1]
        assert results[0].message.startswith(f"BUY 2 {STOCKS[0]} filled")
        assert len(run.query(ORDERS)) == before + 1
        assert {row.symbol: row.quantity for row in first.positions().positions} == {STOCKS[0]: 2}
        assert first.place(STOCKS[0], "BUY", 2, reason="rebalance", key="one") == results[0]
        with pytest.raises(RequestError, match="belongs to another request"):
            first.place(STOCKS[0], "BUY", 3, reason="rebalance", key="one")
        assert f"SELL 2 {STOCKS[0]} filled" in first.flatten("done").message
        assert len(run.query(ORDERS)) == before + 2
        assert [row.side for row in first.fills(limit=2).fills] == ["SELL", "BUY"]
        assert qts("dashboard", "token", "revoke", "bot") == (0, "bot is revoked")
        with pytest.raises(RequestError, match="revoked"):
            first.status()
    assert run.query(VENUE) == []
