"""`qts dev bench backtest`: a rule makes the same trades in every peer; every claim has a row."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import backtest
from benchmarks.backtest_ours import on_bars, on_closes
from benchmarks.backtest_rule import (
    Bars,
    Rule,
    Trade,
    differences,
    random_bars,
    unexplained,
)
from benchmarks.peers_backtest import PEERS, is_installed, peers

RULE = Rule(5, 20)


def our_trades(bars: Bars) -> dict[str, list[Trade]]:
    trials = {way: on_closes(bars, RULE, way) for way in ("compiled", "generic")}
    trials["bars"] = on_bars(bars, RULE)
    return {name: trial().trades for name, trial in trials.items()}


@pytest.mark.parametrize("symbols", [1, 3])
def test_ticks_and_bars_compiled_and_not_make_the_same_trades(symbols: int) -> None:
    found = our_trades(random_bars(symbols, 600, RULE))
    assert len(found["compiled"]) > 3
    for name, trades in found.items():
        assert differences(found["compiled"], trades) == [], name


def test_trades_are_those_of_the_rule() -> None:
    bars = random_bars(1, 600, RULE)
    fast = slow = bars.close[0, 0]
    side, entry, expected = 0, None, []
    for number, close in enumerate(bars.close[0]):
        fast += (close - fast) * 2.0 / (RULE.fast + 1.0)
        slow += (close - slow) * 2.0 / (RULE.slow + 1.0)
        if number + 1 < RULE.slow:
            continue
        before, side = side, 1 if fast > slow else -1 if fast < slow else side
        if entry is None and before < 0 < side:
            entry = number + 1
        elif entry is not None and side < 0:
            prices = bars.close[0, entry], bars.close[0, number + 1]
            expected.append(Trade("KRW-S000", entry, prices[0], number + 1, prices[1], 10))
            entry = None
    assert differences(expected, our_trades(bars)["compiled"]) == []


def test_a_difference_names_the_trade() -> None:
    trade = Trade("KRW-S000", 5, 10_000.0, 9, 10_010.0, 10.0)
    late = trade._replace(exit_bar=10)
    assert differences([trade], [trade]) == []
    assert differences([trade], [late]) == [f"only ours: {trade}", f"only the peer's: {late}"]


def test_an_order_that_ends_with_its_day_explains_a_difference() -> None:
    midnight = 15 * 60 - 1  # the bar whose close is midnight in Seoul: 15:00 UTC
    peers = Trade("KRW-S000", 800, 10_000.0, midnight, 10_010.0, 10.0)
    ours = peers._replace(exit_bar=midnight + 1, exit=10_020.0)
    assert len(differences([ours], [peers])) == 2
    assert unexplained([ours], [peers]) == []
    other = ours._replace(symbol="KRW-S001")
    later = ours._replace(entry_bar=midnight + 2, exit_bar=midnight + 9)
    early = peers._replace(exit_bar=midnight - 1)
    for wrong in (other, later):
        assert unexplained([ours, wrong], [peers]) == [f"only ours: {wrong}"]
    assert len(unexplained([ours], [early])) == 2


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("symbols", [1, 3])
def test_every_installed_peer_makes_the_same_trades(symbols: int) -> None:
    bars = random_bars(symbols, 600, RULE)
    expected = our_trades(bars)["compiled"]
    with peers(bars, RULE) as found:
        assert set(found) == set(filter(is_installed, PEERS))
        for name, trial in found.items():
            assert differences(expected, trial().trades) == [], name


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_quick_run_has_a_row_for_each_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backtest, "_SYMBOLS", 50)
    found: dict[str, Any] = backtest.run(quick=True, progress=lambda _line: None).to_json()
    rows = {(row["name"], row["peer_name"]): row for row in found["rows"]}
    names = {name for name, _ in rows}
    for strategy in ("RSI scalper", "moving-average swing", "breakout on surge"):
        assert f"a day, {strategy}" in names
    assert "a year of minutes, 2 coins, compiled" in names
    assert "a year of minutes, 2 stocks, qts backtest on files" in names
    for symbols in ("1 symbol", "20 symbols", "100 symbols"):
        differing = rows[
            f"trades that differ without a reason, {symbols} x 600", "trades of all runs"
        ]
        assert differing["holds"]
        for way in (backtest.COMPILED, backtest.GENERIC, backtest.ON_BARS):
            for name in PEERS:
                measured = (f"{way}, {symbols} x 600", name) in rows
                assert measured == is_installed(name)
                assert measured or f"{name} is not installed" in found["notes"]
