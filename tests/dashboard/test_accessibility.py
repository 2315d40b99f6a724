"""Accessibility: no page breaks a rule of WCAG 2.2 AA that axe-core can check."""

from __future__ import annotations

import hashlib
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.conftest import Site
from tests.dashboard.filled import fill_site, look_around, set_look
from tests.dashboard.test_pages import BrowserTab, visit

AXE = Path(__file__).parent / "axe" / "axe.min.js"
SHA256 = "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878"
LOOKS = list(product(("dark", "light"), ("en", "ko"), (1440, 1024, 390)))
_CHECK = """async () => {
  const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
  const { violations } = await axe.run(document, { runOnly: tags, resultTypes: ["violations"] });
  const reasons = (node) => node.any.map((each) => each.message).join("; ").slice(0, 160);
  return violations.flatMap(({ id, nodes }) =>
    nodes.map((node) => `${id}: ${node.html.slice(0, 160)} ${reasons(node)}`));
}"""


async def problems(tab: BrowserTab) -> list[str]:
    return [str(each) for each in await tab.page.evaluate(_CHECK)]


def add_axe(page: Any) -> list[Any]:
    text = AXE.read_bytes()
    assert hashlib.sha256(text).hexdigest() == SHA256
    return [page.add_init_script(text.decode())]


async def check(site: Site, browser: Any, looks: list[tuple[str, str, int]]) -> list[str]:
    """Return what axe finds on every page in each look: theme, language, width."""
    intent = await fill_site(site)
    found: list[str] = []
    async with visit(browser, site.tokens.link(site.address), prepare=add_axe) as tab:
        await tab.wait_text("#top", "PAPER")
        for theme, language, width in looks:
            await set_look(tab, theme, language, width)
            async for name in look_around(tab, intent):
                where = f"{name} {theme} {language} {width}"
                found += [f"{where}: {each}" for each in await problems(tab)]
    return found


async def test_no_page_breaks_a_rule(site: Site, browser: Any) -> None:
    found = await check(site, browser, [("dark", "en", 1440), ("light", "ko", 390)])
    assert not found, "\n".join(found)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_no_page_breaks_a_rule_in_any_look(site: Site, browser: Any) -> None:
    found = await check(site, browser, LOOKS)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("language", ["en-GB", "ko-KR"])
async def test_the_login_breaks_no_rule(site: Site, browser: Any, language: str) -> None:
    for scheme in ("dark", "light"):
        context = await browser.new_context(locale=language, color_scheme=scheme)
        try:
            page = await context.new_page()
            await page.add_init_script(AXE.read_text())
            await page.goto(f"{site.address}/login")
            await page.wait_for_selector("#enter")
            assert await problems(BrowserTab(page, site.address)) == []
        finally:
            await context.close()
