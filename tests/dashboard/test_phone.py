"""The pages on a phone: cards, a bar of five, targets for fingers, nothing cut off."""

from __future__ import annotations

from typing import Any

from qts.risk import KillSwitch
from tests.accounts import PAPER
from tests.dashboard.conftest import Site
from tests.dashboard.filled import fill_site, look_around, set_look
from tests.dashboard.test_pages import shoot, visit

# What a finger has to hit, and how large it is.
_SMALL = """() => [...document.querySelectorAll("a, button, input, select, [tabindex='0']")]
  .filter((each) => !each.closest("#price-chart") && each.checkVisibility() && each.id !== "skip")
  .map((each) => [each.outerHTML.slice(0, 120), each.getBoundingClientRect()])
  .filter(([, box]) => box.width && (box.width < 44 || box.height < 44))
  .map(([text, box]) => `${Math.round(box.width)} x ${Math.round(box.height)}: ${text}`)"""
# What reaches over the edge of the screen, or is hidden by the box that it is in.
_CUT = """() => [...document.querySelectorAll("#top *, #nav *, main *, dialog[open] *")]
  .filter((each) => each.checkVisibility() && !each.closest("#price-chart, svg, .hidden, thead"))
  .filter((each) => {
    const box = each.getBoundingClientRect();
    const over = box.width && (box.right > innerWidth + 1 || box.left < -1);
    const hides = getComputedStyle(each).overflowX !== "visible" && each.tagName !== "INPUT";
    return (over && each.id !== "skip") || (hides && each.scrollWidth > each.clientWidth + 1);
  })
  .map((each) => each.outerHTML.slice(0, 140))"""
_TOPS = """() => [...document.querySelector("td button[data-do=close]").closest("tr").cells]
  .map((cell) => cell.getBoundingClientRect().top)"""
_LABEL = """() =>
  getComputedStyle(document.querySelector("td[data-label=Quantity]"), "::before").content"""
_BAR = """() => [...document.querySelectorAll("#nav > *")].filter((each) => each.checkVisibility())
  .map((each) => [each.textContent, each.getBoundingClientRect().bottom])"""


async def test_targets_are_large_and_nothing_is_cut_off(site: Site, browser: Any) -> None:
    intent = await fill_site(site)
    async with visit(browser, site.tokens.link(site.address), 390, 844) as tab:
        await tab.wait_text("main", "Samsung Electronics")
        for language in ("en", "ko"):
            await set_look(tab, "dark", language, 390)
            async for name in look_around(tab, intent):
                small, cut = await tab.page.evaluate(_SMALL), await tab.page.evaluate(_CUT)
                assert small == [], f"{name} {language}: " + "\n".join(small)
                assert cut == [], f"{name} {language}: " + "\n".join(cut)
                file = f"phone-{language}-{name.partition('/')[0]}-{len(name)}.png"
                await shoot(tab.page, file)


async def test_rows_are_cards_with_their_labels(site: Site, browser: Any) -> None:
    await fill_site(site)
    async with visit(browser, site.tokens.link(site.address), 390, 844) as tab:
        await tab.wait_text("main", "Samsung Electronics")
        tops = await tab.page.evaluate(_TOPS)
        assert len(set(tops)) > 3  # below each other, two in a line
        assert await tab.page.evaluate(_LABEL) == '"Quantity"'
        await tab.page.set_viewport_size({"width": 1366, "height": 768})
        assert len(set(await tab.page.evaluate(_TOPS))) == 1


async def test_a_bar_of_five_leads_to_every_page(site: Site, browser: Any) -> None:
    site.run()
    async with visit(browser, site.tokens.link(site.address), 390, 844) as tab:
        await tab.wait_text("#top", "PAPER")
        bar = await tab.page.evaluate(_BAR)
        assert [text[-8:].lstrip("145r") for text, _ in bar] == [
            "Overview", "Market", "Orders", "Trades", "More",
        ]  # fmt: skip
        assert all(abs(bottom - 844) < 8 for _, bottom in bar)
        await tab.page.click("#more-pages")
        await tab.page.wait_for_selector('#more-pages[aria-expanded="true"]')
        await tab.page.click('#nav a[href="#/settings"]')
        await tab.wait_text("main", "Operator actions")
        assert len(await tab.page.evaluate(_BAR)) == 5  # the menu has closed
        await tab.page.click("#more-pages")
        await tab.page.keyboard.press("Escape")
        await tab.page.wait_for_selector('#more-pages[aria-expanded="false"]')


async def test_a_dialog_needs_no_mouse(site: Site, browser: Any) -> None:
    await KillSwitch(site.database, PAPER).enable_unset((), "test")
    site.run()
    focused = "document.activeElement.id"
    async with visit(browser, site.tokens.link(site.address)) as tab:
        press = tab.page.keyboard.press
        await tab.page.wait_for_selector("#kill")
        await press("Tab")
        assert await tab.page.evaluate(focused) == "skip"
        await press("Enter")
        assert await tab.page.evaluate(focused) == "page"  # past header and navigation
        await tab.page.focus("#kill")
        await press("Enter")
        await tab.page.wait_for_selector("dialog[open]")
        order = []
        for _ in range(4):
            order.append(await tab.page.evaluate(focused))
            await press("Tab")
        assert order[:3] == ["reason", "no", "yes"]
        assert set(order) <= {"reason", "no", "yes", ""}  # "" is the browser's own bar
        await press("Escape")
        await tab.page.wait_for_selector("dialog:not([open])", state="attached")
        assert await tab.page.evaluate(focused) == "kill"  # where it was
        await press("Enter")
        await tab.page.keyboard.type("lunch")
        await press("Enter")
        await tab.page.wait_for_selector("#allow")
    assert not (await KillSwitch(site.database, PAPER).all())["account"].enabled
