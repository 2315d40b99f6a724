"""The documentation site in a real browser: its search, its phone drawer, its copy buttons."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.dashboard.test_accessibility import AXE, problems
from tests.dashboard.test_pages import BrowserTab, shoot
from tests.operations.test_site import DOCS, build


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("docs") / "site"
    code, text = build(DOCS, out)
    assert code == 0, text
    return out


@pytest.fixture(scope="module")
async def tab(browser: Any) -> AsyncIterator[Any]:
    """One page for all tests: a new one takes a fifth of a second of CPU time."""
    context = await browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    yield await context.new_page()
    await context.close()


@pytest.fixture
async def page(pages: Path, tab: Any) -> Any:
    """The first page of the site, in a window of the usual size."""
    await tab.set_viewport_size({"width": 1280, "height": 720})
    await tab.emulate_media(color_scheme="light")
    await tab.goto("about:blank")
    await tab.goto(f"file://{pages}/index.html")
    return tab


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ("kill switch", "risk.html#kill-switch"),
        ("Kill  Switch", "risk.html#kill-switch"),
        ("변동성 돌파", "tutorial.ko.html#6-변동성-돌파"),
        ("변동성", "tutorial.ko.html#6-변동성-돌파"),
        ("UNKNOWN", "operations.html#an-unknown-order"),
        ("unknown outcome", "life-of-an-order.html#resolving-an-unknown-outcome"),
        ("backup restore", "operations.html#backup-and-restore"),
        ("Strategy.on_tick", "reference/qts.html#strategyon_tick"),
        ("stop_trading", "reference/qts.client.html#clientstop_trading"),
    ],
)
async def test_the_search_finds_the_right_section_first(page: Any, query: str, place: str) -> None:
    await page.keyboard.press("/")
    await page.keyboard.type(query)
    first = await page.get_attribute("#found a", "href")
    assert first == place
    await page.keyboard.press("Enter")
    await page.wait_for_url(lambda url: unquote(url).endswith(f"/{place}"))


async def test_a_search_without_a_result_says_so(page: Any) -> None:
    await page.fill("#find", "zzzz")
    assert await page.inner_text("#found") == "Nothing found."
    await page.press("#find", "Escape")
    assert await page.inner_text("#found") == ""


async def test_code_is_copied(page: Any, pages: Path) -> None:
    await page.goto(f"file://{pages}/tutorial.html")
    block = page.locator(".code").first
    await block.hover()
    await block.locator(".copy").click()
    await page.wait_for_function("() => document.querySelector('.copy').innerText === 'Copied'")
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert copied == await block.locator("code").text_content()


async def test_the_first_page_begins_with_what_qts_is(page: Any) -> None:
    await page.set_viewport_size({"width": 1440, "height": 1000})
    picture = page.locator('main img[src="images/dashboard.png"]')
    assert await picture.evaluate("each => each.complete && each.naturalWidth > 0")
    places = [page.locator(each).first for each in (".lead", "main img", "main .code")]
    tops = [(await each.bounding_box())["y"] for each in places]
    assert tops == sorted(tops)
    assert tops[1] < 1000  # the picture begins on the first screen
    await page.click("main a:has(img)")
    await page.wait_for_url("**/dashboard.html")


async def test_the_reference_leads_from_type_to_type(page: Any, pages: Path) -> None:
    await page.goto(f"file://{pages}/reference/qts.html#strategyon_tick")
    assert await page.locator("main .code .signature").count() == 0  # nothing to copy
    await page.click("#strategyon_tick + .signature a[href$='#view']")
    await page.wait_for_url("**/reference/qts.html#view")
    assert await page.locator("#view").is_visible()


async def test_a_phone_has_a_drawer(page: Any, pages: Path) -> None:
    await page.set_viewport_size({"width": 390, "height": 844})
    for name in ("reference/qts", "reference/qts.testing", "index", "dashboard", "risk"):
        await page.goto(f"file://{pages}/{name}.html")
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390, name
    assert await page.locator("main h1").bounding_box() is not None
    heading = await page.locator("main h1").bounding_box()
    assert heading["y"] < 200  # the text comes first, not the navigation
    await shoot(page, "docs-phone.png")
    await page.click("#menu")
    assert await page.is_visible('nav a[href="feed.html"]')
    await page.keyboard.press("Escape")
    assert not await page.is_visible('nav a[href="feed.html"]')
    await page.click("#menu")
    await page.click('nav a[href="feed.html"]')
    await page.wait_for_url("**/feed.html")


@pytest.mark.parametrize("scheme", ["dark", "light"])
async def test_pages_break_no_rule(page: Any, pages: Path, scheme: str) -> None:
    await page.emulate_media(color_scheme=scheme)
    axe = AXE.read_text("utf-8")
    for name in ("index", "tutorial", "risk", "reference/qts"):
        await page.goto(f"file://{pages}/{name}.html")
        await page.evaluate(axe)
        assert await problems(BrowserTab(page, "file://x/")) == [], name
        shot = f"docs-{name.replace('/', '-')}-{scheme}.png"
        await shoot(page, shot)
