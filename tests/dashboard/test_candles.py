"""Candles from recorded ticks, in growing and compressed files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.dashboard.run_records import Candles, bars
from qts.domain import RefusedError
from qts.feed import PatternRecord
from qts.feed.ingest import Context, Inputs, Meta, Observation, ObservationSnapshot, State
from qts.feed.recorder import compress

BEGAN = datetime(2026, 11, 16, 0, 0, tzinfo=UTC)


def line(number: int, symbol: str, price: float, at_s: float, volume: float = 1.0) -> bytes:
    time = BEGAN + timedelta(seconds=at_s)
    snapshot = ObservationSnapshot(
        Meta(time, "s", "SIMULATION", "poll", 0.0),
        Context("market", "raw", symbol, "KRX"),
        Observation(Inputs(price, volume, {"stck_shrn_iscd": symbol}), {}, State("normal")),
    )
    return msgspec.json.encode(PatternRecord(1, number, snapshot)) + b"\n"


def test_candles_are_of_the_requested_symbol(tmp_path: Path) -> None:
    (tmp_path / "2026-11-16.0001.jsonl").write_bytes(
        line(1, "005930", 100, 0)
        + line(2, "000660", 7, 1)
        + line(3, "005930", 104, 2)
        + line(4, "005930", 99, 3)
        + line(5, "005930", 101, 61)
    )
    first, second = Candles(tmp_path).of("005930", 60)
    assert (first.open, first.high, first.low, first.close, first.ticks) == (100, 104, 99, 99, 3)
    assert (second.at - first.at, second.open) == (60, 101)


def test_a_growing_file_is_read_incrementally(tmp_path: Path) -> None:
    file = tmp_path / "2026-11-16.0001.jsonl"
    whole = [line(number, "005930", 100 + number, number) for number in range(50)]
    candles = Candles(tmp_path)
    assert candles.of("005930", 1) == []
    with file.open("ab") as out:
        for number, each in enumerate(whole):
            half = len(each) // 2
            out.write(each[:half])
            out.flush()
            assert len(candles.of("005930", 1)) == number  # a torn line is not a tick yet
            out.write(each[half:])
            out.flush()
            assert [bar.ticks for bar in candles.of("005930", 1)] == [1] * (number + 1)


def test_a_file_that_was_compressed_is_not_counted_twice(tmp_path: Path) -> None:
    file = tmp_path / "2026-11-16.0001.jsonl"
    file.write_bytes(b"".join(line(number, "005930", 100, number) for number in range(10)))
    candles = Candles(tmp_path)
    assert sum(bar.ticks for bar in candles.of("005930", 60)) == 10
    compress(file)
    assert sum(bar.ticks for bar in candles.of("005930", 60)) == 10
    assert sum(bar.ticks for bar in Candles(tmp_path).of("005930", 60)) == 10


def test_the_volume_of_a_bar_is_what_was_traded_in_it(tmp_path: Path) -> None:
    """Ticks carry the volume of the day so far; it begins again with the next day."""
    volumes = [500.0, 520.0, 560.0, 560.0, 10.0, 25.0]
    lines = [line(n, "005930", 100, n * 30, volume) for n, volume in enumerate(volumes)]
    (tmp_path / "2026-11-16.0001.jsonl").write_bytes(b"".join(lines))
    assert [bar.volume for bar in Candles(tmp_path).of("005930", 60)] == [20, 40, 15]


@pytest.mark.parametrize("symbol", ["", "../x", 'a"b', "x" * 41])
def test_an_invalid_symbol_is_refused(tmp_path: Path, symbol: str) -> None:
    with pytest.raises(RefusedError, match="invalid symbol"):
        Candles(tmp_path).of(symbol, 60)


@given(
    st.lists(
        st.tuples(st.floats(0, 1e6), st.floats(1, 1e6), st.integers(0, 1000).map(float)),
        max_size=100,
    ).map(sorted),
    st.sampled_from([1, 5, 60, 300]),
)
def test_bars_hold_every_tick_between_their_low_and_high(
    ticks: list[tuple[float, float, float]], bar_s: int
) -> None:
    found = bars(ticks, bar_s)
    assert sum(bar.ticks for bar in found) == len(ticks)
    assert [bar.at for bar in found] == sorted({int(at // bar_s) * bar_s for at, _, _ in ticks})
    for bar in found:
        inside = [price for at, price, _ in ticks if bar.at <= at < bar.at + bar_s]
        assert (bar.open, bar.close) == (inside[0], inside[-1])
        assert (bar.low, bar.high) == (min(inside), max(inside))
