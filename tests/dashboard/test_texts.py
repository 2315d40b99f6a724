"""Texts of the pages: each in English and Korean, times of Seoul, won, colours of rise and fall."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from qts.dashboard.actions import Action
from qts.domain import AttemptState, IntentType, OrderState, OrderType, Side
from qts.notify.rules import RULES
from qts.orders import ManualState
from qts.risk import CODES, SafetyState
from qts.risk.gate import REASONS
from tests.dashboard.conftest import Site
from tests.dashboard.filled import fill_site, set_look
from tests.dashboard.test_pages import PAGES, visit

PAGE = Path(__file__).parents[2] / "src" / "qts" / "dashboard" / "page"
SOURCES = {
    path.name: path.read_text("utf-8")
    for path in sorted(PAGE.glob("*.js"))
    if path.name != "lightweight-charts.js"
}
HANGUL = re.compile("[가-힣]")
SAME = {"language_code", "cache_redis"}  # not a text, and a name
_ENTRY = re.compile(r'(\w+): \["([^"]*)", "([^"]*)"\]')
LABELS = {key: (en, ko) for key, en, ko in _ENTRY.findall(SOURCES["labels.js"])}
# Names and signs that need no translation.
NAMES = {
    "p50", "p95", "p99", "p99.9", "P0 p99", "PreCheck", "Sharpe", "Valkey / Redis", "CPU", "QTS",
    "OK", "PAUSED", "TradingView",
}  # fmt: skip


def keys_used() -> dict[str, set[str]]:
    """Return the keys of texts by file; a `*` stands for what is computed."""
    used: dict[str, set[str]] = {}
    for name, text in SOURCES.items():
        found = set(re.findall(r'\bt\("(\w+)"\)', text))
        found |= {f"{part}*" for part in re.findall(r"\bt\(`(\w+)\$\{", text)}
        for left, right in re.findall(r'\bt\([^()]*\? "(\w+)" : "(\w+)"\)', text):
            found |= {left, right}
        used[name] = found
    return used


@pytest.mark.parametrize("name", SOURCES)
def test_every_text_that_is_used_exists(name: str) -> None:
    for key in keys_used()[name]:
        if key.endswith("*"):
            assert any(label.startswith(key[:-1]) for label in LABELS), key
        else:
            assert key in LABELS, key


@pytest.mark.parametrize("name", SOURCES)
def test_every_function_of_another_module_is_imported(name: str) -> None:
    """No compiler checks the modules, and a page that is not drawn in a test could miss one."""
    text = SOURCES[name]
    exported = {
        each
        for other in SOURCES.values()
        for each in re.findall(
            r"^export (?:const|function|async function) (\w+)", other, re.MULTILINE
        )
    }
    imported = re.findall(r"^import (?:\{([^}]*)\}|\* as (\w+))", text, re.MULTILINE)
    known = set(re.findall(r"\w+", " ".join(part for pair in imported for part in pair)))
    known |= set(re.findall(r"\b(?:const|let|function) (\w+)", text))
    called = set(
        re.findall(r"(?<![\w.$])(\w+)\(", re.sub(r"^ *//.*$", "", text, flags=re.MULTILINE))
    )
    called -= set(re.findall(r"^  (?:async )?(\w+)\([^)]*\) \{$", text, re.MULTILINE))  # methods
    assert (called & exported) - known == set()


def test_every_text_is_in_both_languages() -> None:
    assert len(LABELS) > 200
    lines = SOURCES["labels.js"].split("const LABELS = {")[1].split("\n};")[0]
    assert len(re.findall(r"\w+: \[", lines)) == len(LABELS)  # none has one text only, or is twice
    for key, (english, korean) in LABELS.items():
        assert english, key
        assert not HANGUL.search(english), key
        assert key in SAME or HANGUL.search(korean), key
        assert set(re.findall(r"{\w*}", english)) == set(re.findall(r"{\w*}", korean)), key


def test_no_text_stands_in_a_page() -> None:
    pattern = r'\b(?:right|figure|card|silent|button|chip)\("([^"]*[A-Za-z]{2}[^"]*)"'
    for name, text in SOURCES.items():
        assert set(re.findall(pattern, text)) <= NAMES, name
        if name.startswith("pages_"):
            for head in re.findall(r"table\(\[([^\]]*)\]", text):
                left = re.findall(r'"(.*?)"', re.sub(r't\("\w+"\)', "", head))
                assert set(left) <= NAMES, f"{name}: {head}"


def test_the_login_is_in_both_languages() -> None:
    blocks = re.findall(r"^  (en|ko): \{(.*)\},$", SOURCES["login.js"], re.MULTILINE)
    texts = {name: re.findall(r'(\w+): "([^"]+)"', block) for name, block in blocks}
    assert [key for key, _ in texts["en"]] == [key for key, _ in texts["ko"]]
    assert all(HANGUL.search(text) for _, text in texts["ko"])


def test_every_action_of_a_page_has_a_text_when_it_is_done() -> None:
    tags = {str(each.__struct_config__.tag) for each in Action.__subclasses__()}
    assert {f"done_{tag}" for tag in tags - {"place"}} <= LABELS.keys()  # place: the API only


async def test_states_and_codes_have_korean_names(site: Site, browser: Any) -> None:
    """Every one that the source knows."""
    async with visit(browser, site.tokens.link(site.address)) as tab:
        found = "import('/page/labels_codes.js').then((all) => [all.STATES, all.CODES])"
        states, codes = await tab.page.evaluate(found)
    kinds = (AttemptState, IntentType, ManualState, OrderState, OrderType, SafetyState, Side)
    assert {each.value for kind in kinds for each in kind} <= states.keys()
    rules = {rule.name for rule in RULES}
    assert {*CODES, *REASONS, *rules} <= codes.keys()
    assert all(HANGUL.search(text) for text in (*states.values(), *codes.values()))


async def test_times_are_those_of_seoul_and_money_is_won(site: Site, browser: Any) -> None:
    await fill_site(site)
    link = site.tokens.link(site.address)
    async with visit(browser, link, timezone_id="America/New_York", locale="ko-KR") as tab:
        await tab.wait_text("main", "삼성전자 005930")
        assert await tab.page.get_attribute("html", "lang") == "ko"
        assert re.search(r"\d\d:\d\d:\d\d KST", await tab.page.inner_text("#top"))
        started = "2026-11-16 09:00:00 KST"  # of the run: midnight UTC
        assert started in await tab.page.inner_text("#nav")
        await tab.wait_text("main", f"{chr(8361)}71,000")
        assert "정상" in await tab.page.inner_text("#banner")
        await tab.wait_text(".alerts", "시세가 손절 판단에 너무 오래되었습니다")
        for name in PAGES:
            text = await tab.open(name)
            assert HANGUL.search(text), name
        await tab.page.keyboard.press("k")
        dialog = await tab.page.inner_text("#confirm")
        assert not re.search("[A-Za-z]{4}", dialog), dialog
        await tab.page.keyboard.type("점심")
        await tab.page.keyboard.press("Enter")
        await tab.wait_text("#toast", "비상 정지 변경됨")


async def test_red_can_mean_up_and_the_browser_keeps_it(site: Site, browser: Any) -> None:
    await fill_site(site)
    colour = "getComputedStyle(document.querySelector('td.up')).color"

    def rgb(text: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", text)[:3]]

    async with visit(browser, site.tokens.link(site.address)) as tab:
        await tab.page.wait_for_selector("td.up")
        before = rgb(await tab.page.evaluate(colour))
        assert before[1] == max(before)  # green
        await tab.open("settings")
        await tab.page.click("#colours")
        await tab.page.reload()
        await tab.open("overview")
        await tab.page.wait_for_selector("td.up")
        after = rgb(await tab.page.evaluate(colour))
        assert after[0] == max(after)  # red
        await set_look(tab, "light", "en", 1366)
        light = rgb(await tab.page.evaluate(colour))
        assert light[0] == max(light)
        down = "getComputedStyle(document.documentElement).getPropertyValue('--down')"
        blue = bytes.fromhex((await tab.page.evaluate(down)).strip()[1:])
        assert blue[2] == max(blue)
