"""Instruments of a backtest: their rules apply, and they come from files or a default."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from qts.backtest import BacktestConfig, load_instruments, run_backtest
from qts.brokers import FeesConfig
from qts.domain import InstrumentClass, Instruments, RefusedError, Side, Tick, krx_instrument
from qts.feed import InstrumentList
from qts.simulators.kis.companies import MasterRow, write_master
from qts.strategies import NoParams, Signal, Strategy, View
from tests.backtest.tapes import prices, tape

# ruff: noqa: ARG002 - signatures of Strategy


class RoundTrip(Strategy[NoParams]):
    """Buys at the first event and sells at the third."""

    seen = 0

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        self.seen += 1
        if self.seen in (1, 3):
            side = Side.BUY if self.seen == 1 else Side.SELL
            yield Signal(symbol=tick.symbol, side=side, at=tick.at)


def test_an_etf_pays_no_tax_and_trades_on_its_own_ticks() -> None:
    config = BacktestConfig(costs=FeesConfig(krx_fee=0.001), use_stops=False)
    symbol = prices([10_000])[0].symbol
    etf = Instruments([krx_instrument(symbol, InstrumentClass.ETF)])
    result = run_backtest(
        RoundTrip.from_params(), tape(prices([10_000] * 4)), config, instruments=etf
    )
    assert [fill.fee for fill in result.fills] == [500, 500]
    taxed = run_backtest(RoundTrip.from_params(), tape(prices([10_000] * 4)), config)
    assert [fill.fee for fill in taxed.fills] == [500, 1500]


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("data/instruments.json", "catalogue", "ETF"),  # beside the data
        ("instruments.json", "catalogue", "ETF"),  # in the folder above
        ("given.json", "catalogue", "ETF"),
        ("kospi_code.mst", "master", "ETF"),
        ("", "", "STOCK"),
    ],
)
def test_instruments_come_from_a_file_or_from_the_default(
    tmp_path: Path, name: str, content: str, kind: str
) -> None:
    (tmp_path / "data").mkdir()
    if content == "catalogue":
        known = InstrumentList(
            venue="kis",
            environment="real",
            refreshed_at=None,
            instruments=[krx_instrument("069500", InstrumentClass.ETF, halted=True)],
        )
        (tmp_path / name).write_bytes(msgspec.json.encode(known))
    elif content == "master":
        row = MasterRow("069500", "KODEX 200", 35_000, "EF", halted=True)
        (tmp_path / name).write_bytes(write_master([row], kospi=True))
    given = tmp_path / name if name.startswith(("given", "kospi")) else None
    found = load_instruments(given, tmp_path / "data" / "ticks.csv", "auto")
    assert found["069500"].kind == kind
    assert found.entry_block("069500") == ""  # a halt of the list's day is not one of the data
    assert found["KRW-BTC"].kind is InstrumentClass.COIN
    assert load_instruments(given, None, "upbit")["ABC"].kind is InstrumentClass.COIN


def test_a_file_that_is_no_list_of_instruments_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kospi_code.mst.zip").write_bytes(b"no zip")
    with pytest.raises(RefusedError, match=r"--instruments .*: not a readable zip"):
        load_instruments(tmp_path / "kospi_code.mst.zip", None, "auto")
    with pytest.raises(RefusedError, match="No such file"):
        load_instruments(tmp_path / "none.json", None, "auto")
