"""`qts dev bench backtest`: a rule makes the same trades in every peer; every claim has a row."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import backtest
from benchmarks.peers_backtest import Rule, peers


@pytest.mark.parametrize("symbols", [1, 3])
def test_every_peer_makes_as_many_trades(symbols: int) -> None:
    bars = backtest.random_bars(symbols, 600)
    rule = Rule(5, 20)
    trials = {way: backtest.ours(bars, rule, way) for way in ("compiled", "generic")}
    trials |= {name: make(bars, rule) for name, make in peers().items()}
    trades = {name: trial().trades for name, trial in trials.items()}
    assert trades["compiled"] > 3
    assert len(set(trades.values())) == 1, trades


@pytest.mark.soak
def test_a_quick_run_has_a_row_for_each_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backtest, "_SYMBOLS", 50)
    found: dict[str, Any] = backtest.run(quick=True, progress=lambda _line: None).to_json()
    names = [row["name"] for row in found["rows"]]
    for strategy in ("RSI scalper", "moving-average swing", "breakout on surge"):
        assert f"a day, {strategy}" in names
    assert "one rule, 1 symbol" in names
    assert "one rule, 10 symbols" in names
    for name in ("backtesting.py", "nautilus_trader"):
        measured = any(row["peer_name"] == name for row in found["rows"])
        assert measured or f"{name} is not installed" in found["notes"]
