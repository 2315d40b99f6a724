"""The report: table, JSON and a self-contained page."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from html.parser import HTMLParser

import msgspec
import pytest
from rich.console import Console

from qts.backtest import (
    BacktestResult,
    EquityPoint,
    render_html,
    render_table,
    result_frame,
    run_backtest,
    to_json,
)
from qts.backtest.performance import performance
from qts.backtest.report import month_rows
from qts.backtest.result import Library
from qts.domain import RefusedError
from qts.strategies import RsiScalper
from tests.backtest.tapes import prices, tape, walk


@pytest.fixture(scope="module")
def result() -> BacktestResult:
    found = run_backtest(
        RsiScalper.from_params({"length": 4, "low": 35, "high": 65}), tape(walk(7))
    )
    assert len(found.trades) > 3
    return found


def text_of(result: BacktestResult) -> str:
    console = Console(width=160, force_terminal=False, record=True, file=None)
    with console.capture() as captured:
        console.print(render_table(result))
    return captured.get()


def test_the_table_has_the_figures(result: BacktestResult) -> None:
    shown = text_of(result)
    for word in ("max drawdown", "win rate", "profit factor", "costs", "CAGR", "length=4"):
        assert word in shown
    assert f"{result.performance.end_equity:,.0f}" in shown
    assert result.digest in shown


def test_json_holds_every_figure_and_the_curve(result: BacktestResult) -> None:
    found = json.loads(msgspec.json.encode(to_json(result)))
    assert found["performance"]["trades"] == len(result.trades) == len(found["trades"])
    assert found["digest"] == result.digest
    assert found["equity"][0] == [result.points[0].at, result.points[0].equity]
    assert found["equity"][-1][1] == result.performance.end_equity
    assert {"events_per_s", "refusals", "still_open", "errors"} <= found.keys()


def test_infinity_is_written_as_a_word(result: BacktestResult) -> None:
    won = [trade for trade in result.trades if trade.profit > 0][:1]
    only = msgspec.structs.replace(
        result, performance=performance(result.points, won, result.fills)
    )
    assert to_json(only)["performance"]["profit_factor"] == "inf"
    assert "∞" in text_of(only)


class Page(HTMLParser):
    """Parser that collects tags and links and checks that every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:  # noqa: ARG002 - its contract
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_self_contained(result: BacktestResult) -> None:
    text = render_html(result)
    page = Page(text)
    assert not page.open
    assert page.tags.count("svg") == 3
    assert "script" not in page.tags
    assert page.links == []
    assert "http" not in text
    assert "prefers-color-scheme:dark" in text
    trades = text.split("<h2>Trades</h2>")[1]
    assert trades.count("<tr>") == 1 + len(result.trades)
    assert "nan" not in text.lower()


def test_the_page_shows_names_as_text(result: BacktestResult) -> None:
    named = msgspec.structs.replace(result.strategies[0], key="<script>alert(1)</script>")
    evil = msgspec.structs.replace(result, strategies=(named,))
    text = render_html(evil)
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_a_run_without_trades_has_a_page_too() -> None:
    quiet = run_backtest(RsiScalper.from_params(), tape(prices([10_000.0] * 3)))
    text = render_html(quiet)
    assert not Page(text).open
    assert "no completed trades" in text
    assert not re.search(r"\binf\b", text)


def test_parameters_that_do_not_exist_are_refused() -> None:
    expected = "no parameter 'lenght'; expected length, low, high; did you mean length"
    with pytest.raises(RefusedError, match=expected):
        RsiScalper.from_params({"lenght": 4})


def test_the_page_shows_months_symbols_reasons_costs_and_prices(result: BacktestResult) -> None:
    text = render_html(result, tape(walk(7)))
    page = Page(text)
    traded = {trade.symbol for trade in result.trades}
    assert page.tags.count("svg") == 3 + len(traded)
    assert text.count('class="entry"') == len(result.trades) + len(result.still_open)
    assert 'class="other"' in text  # buy and hold
    for heading in ("Months", "Symbols", "Reasons of exits", "Strategies"):
        assert f"<h2>{heading}</h2>" in text
    for reason in {trade.reason.removeprefix("EXIT_").lower() for trade in result.trades}:
        assert f"<td>{reason}</td>" in text
    for setting in ("limits.max_order_value", "costs.krx_fee", "paper.seed", "stops.mae_full"):
        assert setting in text


def test_months_multiply_to_the_gain_of_the_year() -> None:
    at = [datetime(2025, month, 15, tzinfo=UTC).timestamp() for month in (11, 12)]
    at += [datetime(2026, month, 15, tzinfo=UTC).timestamp() for month in (1, 2)]
    points = [
        EquityPoint(time, value, 0.0) for time, value in zip(at, (100, 110, 99, 198), strict=True)
    ]
    rows = list(month_rows(points))
    assert [row[0] for row in rows] == ["2025", "2026"]
    assert rows[0][11:14] == (("+0.00%", ""), ("+10.00%", "gain"), ("+10.00%", "gain"))
    assert rows[1][1:3] == (("-10.00%", "loss"), ("+100.00%", "gain"))
    assert rows[1][13] == ("+80.00%", "gain")


@pytest.mark.parametrize("library", ["polars", "pandas"])
def test_results_are_frames(result: BacktestResult, library: Library) -> None:
    trades = result_frame(result, "trades", library)
    assert len(trades) == len(result.trades)
    assert trades["profit"].sum() == pytest.approx(sum(float(t.profit) for t in result.trades))
    assert len(result_frame(result, "equity", library)) == len(result.points)
    assert len(result_frame(result, "fills", library)) == len(result.fills)
    assert len(result_frame(result, "orders", library)) == len(result.proposals)
    with pytest.raises(RefusedError, match="trade"):
        result_frame(result, "trade", library)
