"""The notebooks of examples/ run from the first cell to the last; none has outputs in it."""

from __future__ import annotations

import ast
import json
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from qts.backtest import BacktestResult, render_html

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples/notebooks").glob("*.ipynb"))


def run(path: Path) -> list[Any]:
    """Run the code cells in one namespace; return the value of each that ends with one."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] != "code":
            continue
        assert (cell["outputs"], cell["execution_count"]) == ([], None), "strip the outputs"
        tree = ast.parse("".join(cell["source"]), f"{path.name}, cell {number}")
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, tree_name := f"{path.name}-{number}", "exec"), names)  # noqa: S102
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), tree_name, "eval"), names))  # noqa: S307
    return shown


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=lambda path: path.stem)
def shown(request: pytest.FixtureRequest) -> list[Any]:
    return run(request.param)


def test_a_notebook_shows_a_result_and_frames(shown: list[Any]) -> None:
    (result,) = (each for each in shown if isinstance(each, BacktestResult))
    assert result.trades
    assert not result.errors
    frames = [each for each in shown if hasattr(each, "shape")]
    assert len(frames) >= 4
    assert all(len(each) for each in frames)


def test_a_result_shows_its_page_in_a_frame(shown: list[Any]) -> None:
    (result,) = (each for each in shown if isinstance(each, BacktestResult))
    html = result._repr_html_()
    assert html.startswith('<iframe srcdoc="')
    page = unescape(html.removeprefix('<iframe srcdoc="').partition('" sandbox')[0])
    assert page == render_html(result)
    assert "<svg" in page
    assert "<script" not in page
