"""The kill switch from every page in two actions, and every dialog by the keyboard alone."""

from __future__ import annotations

import re
from typing import Any

import pytest

from qts.risk import FailSafe, KillSwitch
from tests.accounts import PAPER
from tests.dashboard.conftest import Site
from tests.dashboard.filled import fill_site
from tests.dashboard.test_actions import action_rows
from tests.dashboard.test_pages import PAGES, BrowserTab, visit
from tests.dashboard.test_texts import SOURCES

FOCUSED = "document.activeElement.dataset.do ?? document.activeElement.id"
# Every button that opens a dialog, by page; the reason where it asks for one.
DIALOGS = [
    ("strategies", "params", None),
    ("outbox", "requeue", None),
    ("overview", "acknowledge", "seen"),
    ("overview", "cancel", "not today"),
    ("overview", "close", "leaving"),
    ("overview", "release", "checked"),
    ("overview", "kill", "lunch"),
]


@pytest.mark.parametrize("width", [1366, 390])
async def test_trading_is_stopped_from_every_page_in_two_actions(
    site: Site, browser: Any, width: int
) -> None:
    switch = KillSwitch(site.database, PAPER)
    await fill_site(site)
    async with visit(browser, site.tokens.link(site.address), width) as tab:
        for name in PAGES:
            await switch.set(True, "test", "again")
            await tab.open(name)
            await tab.page.click("#stop")  # one
            await tab.page.keyboard.type(f"from {name}")
            await tab.page.keyboard.press("Enter")  # two
            await tab.page.wait_for_selector("#stop", state="detached")
            found = (await switch.all())["account"]
            assert (found.enabled, found.reason) == (False, f"from {name}")
    assert [row["detail"]["reason"] for row in await action_rows(site.database)] == [
        f"from {name}" for name in PAGES
    ]


def test_every_dialog_is_in_the_list() -> None:
    _, *functions = re.split(r"^  async ", SOURCES["actions.js"], flags=re.MULTILINE)
    asking = [each.partition("(")[0] for each in functions if "confirmAction(" in each]
    assert sorted(asking) == sorted(action for _, action, _ in DIALOGS)


async def tab_to(tab: BrowserTab, action: str) -> None:
    """Press Tab until a button has the focus."""
    for _ in range(150):
        await tab.page.keyboard.press("Tab")
        if await tab.page.evaluate(FOCUSED) == action:
            return
    raise AssertionError(f"no Tab leads to {action}")


async def test_every_dialog_is_used_without_a_mouse(site: Site, browser: Any) -> None:
    await fill_site(site)
    await FailSafe(site.database, PAPER).trip("FS070", "3 and 2")
    async with visit(browser, site.tokens.link(site.address)) as tab:
        press = tab.page.keyboard.press
        shown = set()
        for name, action, reason in DIALOGS:
            await tab.open(name)
            await tab.page.wait_for_selector(f'main [data-do="{action}"]')
            await tab.page.evaluate("document.activeElement.blur()")
            if action == "params":
                await tab_to_field(tab, "length")
                await tab.page.keyboard.type("21")
            await tab_to(tab, action)
            await press("Enter")
            await tab.page.wait_for_selector("dialog[open]")
            await press("Escape")
            await tab.page.wait_for_selector("dialog:not([open])", state="attached")
            assert await tab.page.evaluate(FOCUSED) == action  # where it was
            await press("Enter")
            await tab.page.wait_for_selector("dialog[open]")
            shown.add(await tab.page.inner_text("#confirm-title"))
            if reason is None:
                assert await tab.page.evaluate(FOCUSED) == "no"  # Enter alone does nothing
                await press("Tab")
            else:
                await tab.page.keyboard.type(reason)
            await press("Enter")
            await tab.page.wait_for_selector("dialog:not([open])", state="attached")
            await tab.page.wait_for_selector("#toast.shown.good, #toast.shown.bad", timeout=30_000)
            await tab.page.evaluate("document.getElementById('toast').className = ''")
        assert len(shown) == len(DIALOGS)
        tab.problems.clear()  # no run closes a position here: a refusal, which the console logs
    rows = await action_rows(site.database)
    assert [row["action"] for row in rows] == [action for _, action, _ in DIALOGS]
    reasons = [row["detail"].get("reason") or None for row in rows]
    assert reasons == [reason for _, _, reason in DIALOGS]


async def tab_to_field(tab: BrowserTab, name: str) -> None:
    for _ in range(150):
        await tab.page.keyboard.press("Tab")
        if await tab.page.evaluate("document.activeElement.dataset.param") == name:
            return
    raise AssertionError(f"no Tab leads to the field {name}")
