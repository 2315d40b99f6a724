"""The strategy of docs/strategy-guide.md passes the test of that page."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from qts.strategies import builtin_strategies, load_strategy

GUIDE = Path(__file__).parents[2] / "docs/strategy-guide.md"


@pytest.fixture
def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)


def test_the_smallest_one_passes_its_own_test(
    blocks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("mine")
    monkeypatch.setitem(sys.modules, "mine", module)
    exec(blocks[0], module.__dict__)  # noqa: S102 - our own page
    exec(blocks[2], module.__dict__)  # noqa: S102 - the same
    module.__dict__["test_it_buys_the_dip"]()
    assert module.__dict__["Mine"].key == "mine"


def test_the_guide_names_the_built_in_strategies() -> None:
    text = GUIDE.read_text("utf-8")
    assert [key for key in builtin_strategies() if f"`{key}`" not in text] == []


def test_the_strategy_of_the_examples_loads_from_its_file() -> None:
    kind = load_strategy(f"{GUIDE.parents[1] / 'examples/strategies/buy_the_dip.py'}:BuyTheDip")
    assert kind.from_params({"fall": "0.5"}).key == "buy_the_dip"
