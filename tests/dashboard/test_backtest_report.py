"""The page of a backtest in a browser: one file, no network, readable on a phone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from qts.backtest import render_html
from tests.backtest.bars import bar_tape, day_closes, on_bars, run
from tests.backtest.test_bar_laws import made_bars

SYMBOLS = ("005930", "000660", "035420", "051910")


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chance = random.Random(3)  # noqa: S311 - a walk, not a secret
    closes = day_closes(240)
    bars = {
        symbol: list(zip(closes, made_bars(chance, 240, 40_000.0), strict=True))
        for symbol in SYMBOLS
    }
    tape = bar_tape(bars)
    result = run(on_bars(range(0, 240, 8), range(5, 240, 8)), tape)
    assert len(result.trades) > 50
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(render_html(result, tape), encoding="utf-8")
    return file


@pytest.mark.parametrize("width", [390, 1440])
async def test_the_page_is_readable_without_network(
    browser: Any, page_file: Path, width: int
) -> None:
    context = await browser.new_context(viewport={"width": width, "height": 900}, offline=True)
    page = await context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("requestfailed", lambda request: problems.append(request.url))
    await page.goto(page_file.as_uri())
    assert problems == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    assert await page.locator("svg").count() == 3 + len(SYMBOLS)
    small = await page.evaluate(
        "[...document.querySelectorAll('svg text')].filter(text =>"
        " getComputedStyle(text).display !== 'none'"
        " && text.getBoundingClientRect().height < 8).length"
    )
    assert small == 0
    cut = await page.evaluate(
        "[...document.querySelectorAll('svg text')].filter(text => {"
        "const box = text.getBoundingClientRect(), plot = text.closest('svg')"
        ".getBoundingClientRect(); return box.width && (box.left < plot.left - 1"
        " || box.right > plot.right + 1 || box.top < plot.top - 1)}).length"
    )
    assert cut == 0
    await context.close()
