"""The strategy of docs/strategy-guide.md passes the test of that page."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from qts.backtest import run_backtest
from qts.domain import Tick
from qts.strategies import builtin_strategies, load_strategy
from tests.backtest.tapes import BEGIN, tape

GUIDE = Path(__file__).parents[2] / "docs/strategy-guide.md"


@pytest.fixture
def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)


def with_text(blocks: list[str], text: str) -> str:
    return next(each for each in blocks if text in each)


def test_the_smallest_one_passes_its_own_test(
    blocks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("mine")
    monkeypatch.setitem(sys.modules, "mine", module)
    exec(blocks[0], module.__dict__)  # noqa: S102 - our own page
    exec(with_text(blocks, "def test_it"), module.__dict__)  # noqa: S102 - the same
    module.__dict__["test_it_buys_the_dip"]()
    assert module.__dict__["Mine"].key == "mine"


def test_the_strategy_on_bars_buys_a_rise(
    blocks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("trend")
    monkeypatch.setitem(sys.modules, "trend", module)
    exec(with_text(blocks, "class Trend"), module.__dict__)  # noqa: S102 - our own page
    prices = [1_000_000.0 + 1000 * abs(60 - second // 60) for second in range(150 * 60)]
    ticks = [Tick("KRW-BTC", each, 1.0, 0, 0, BEGIN + n) for n, each in enumerate(prices)]
    result = run_backtest(module.__dict__["Trend"].from_params({}), tape(ticks))
    assert [fill.side for fill in result.fills][:1] == ["BUY"]
    assert not result.errors


def test_the_guide_names_the_built_in_strategies() -> None:
    text = GUIDE.read_text("utf-8")
    assert [key for key in builtin_strategies() if f"`{key}`" not in text] == []


def test_the_strategy_of_the_examples_loads_from_its_file() -> None:
    kind = load_strategy(f"{GUIDE.parents[1] / 'examples/strategies/buy_the_dip.py'}:BuyTheDip")
    assert kind.from_params({"fall": "0.5"}).key == "buy_the_dip"
