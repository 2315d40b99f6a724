"""The catalogue: what is written is read back; ranges, damage and the lock."""

from __future__ import annotations

import math
import os
import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qts.domain import Bar, Market, OperationError, RefusedError, Timeframe
from qts.feed import TradingCalendar
from qts.history import BarCatalogue, Finding, Series, check_catalogue
from qts.history.catalogue_file import (
    BAR_FIELDS,
    TICKS,
    Range,
    bar_rows,
    clip,
    make_rows,
    merge,
    subtract,
)

BTC = Series(Market.UPBIT, "1m", "KRW-BTC")
SAMSUNG = Series(Market.KRX, "1d", "005930")
OCTOBER = datetime(2026, 10, 1, tzinfo=UTC).timestamp()
MONTH_S = 31 * 86_400.0

whole = st.integers(0, 60)
ranges = st.lists(st.tuples(whole, whole).map(lambda pair: (float(min(pair)), float(max(pair)))))


def bar(at: float, price: float = 100.0, symbol: str = "KRW-BTC") -> Bar:
    return Bar(symbol, Timeframe.M1, at, price, price * 2, price / 2, price + price / 9, 3.0, 300.0)


def points(parts: list[Range]) -> set[int]:
    return {n for low, high in parts for n in range(int(low) + 1, int(high) + 1)}


# Ranges


@given(ranges)
def test_merged_ranges_are_sorted_disjoint_and_hold_the_same_time(
    given_ranges: list[Range],
) -> None:
    merged = merge(given_ranges)
    assert points(merged) == points(given_ranges)
    assert all(low < high for low, high in merged)
    assert all(a[1] < b[0] for a, b in pairwise(merged))


@given(ranges, whole, whole)
def test_what_is_missing_and_what_is_covered_make_up_the_whole(
    covered: list[Range], one: int, two: int
) -> None:
    start, end = float(min(one, two)), float(max(one, two))
    missing = subtract((start, end), covered)
    inside = clip(covered, start, end)
    assert points(missing) & points(inside) == set()
    assert points(missing) | points(inside) == points([(start, end)])


# Round trip

minutes = st.integers(31 * 1440 - 6, 31 * 1440 + 6)  # over the end of October
prices = st.floats(0.0001, 1e9)


@st.composite
def pages(draw: st.DrawFn) -> tuple[Range, list[Bar]]:
    first, length = draw(minutes), draw(st.integers(1, 6))
    inside = draw(st.sets(st.integers(first + 1, first + length), max_size=20))
    bars = [bar(OCTOBER + n * 60.0, draw(prices)) for n in sorted(inside)]
    return (OCTOBER + first * 60.0, OCTOBER + (first + length) * 60.0), bars


@settings(max_examples=30, deadline=None)
@given(st.lists(pages(), min_size=1, max_size=5))
def test_the_last_page_of_a_time_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, written: list[tuple[Range, list[Bar]]]
) -> None:
    catalogue = BarCatalogue(tmp_path_factory.mktemp("home"))
    expected: dict[float, Bar] = {}
    with catalogue.writing():
        for (start, end), bars in written:
            catalogue.write(BTC, (start, end), bar_rows(bars))
            expected = {at: b for at, b in expected.items() if not start < at <= end}
            expected |= {b.at: b for b in bars}
    again = BarCatalogue(catalogue.root.parent)
    found = again.bars("upbit", "KRW-BTC", "1m")
    assert [Bar("KRW-BTC", Timeframe.M1, *row.item()) for row in found] == [
        expected[at] for at in sorted(expected)
    ]
    assert again.covered(BTC) == merge(span for span, _ in written)
    assert damaged(again) == []
    info = again.info(BTC)
    assert (info.bars, info.gaps) == (len(expected), len(again.covered(BTC)) - 1)


@given(st.lists(st.floats(0, 86_399).map(lambda s: round(s, 6)), min_size=1, max_size=30))
@settings(max_examples=20, deadline=None)
def test_ticks_keep_their_microseconds_and_repetitions(
    tmp_path_factory: pytest.TempPathFactory, seconds: list[float]
) -> None:
    at = np.sort(np.round(np.array(seconds) + OCTOBER, 6))
    ones = np.ones(len(at))
    rows = make_rows(TICKS, {"at": at, "price": ones * 7, "volume": ones, "bid": ones * 6})
    catalogue = BarCatalogue(tmp_path_factory.mktemp("home"))
    ticks = Series(Market.KRX, TICKS, "005930")
    for _ in range(2):
        with catalogue.writing():
            catalogue.write(ticks, (float(at[0]) - 1e-6, float(at[-1])), rows)
    found = BarCatalogue(catalogue.root.parent).rows(ticks)
    assert found["at"] == pytest.approx(at, abs=1e-6, rel=0)
    assert found["bid"].tolist() == [6.0] * len(at)


def test_files_are_months_of_minutes_and_years_of_days(tmp_path: Path) -> None:
    catalogue = BarCatalogue(tmp_path)
    with catalogue.writing():
        catalogue.write(
            BTC, (OCTOBER - 60, OCTOBER + 60), bar_rows([bar(OCTOBER), bar(OCTOBER + 60)])
        )
        days = [OCTOBER + n * 86_400 for n in (0, 91, 92, 93)]
        catalogue.write(SAMSUNG, (days[0] - 1, days[-1]), bar_rows(map(bar, days)))
    names = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.parquet"))
    assert names == [
        "catalogue/krx/1d/005930/2026.parquet",
        "catalogue/krx/1d/005930/2027.parquet",
        "catalogue/upbit/1m/KRW-BTC/2026-09.parquet",  # a bar belongs to the month it was made in
        "catalogue/upbit/1m/KRW-BTC/2026-10.parquet",
    ]
    start, end = (datetime.fromtimestamp(at, UTC) for at in (days[0], days[2]))
    assert catalogue.bars("krx", "005930", "1d", start, end)["at"].tolist() == days[1:3]
    assert list(tmp_path.rglob("*.draft")) == []


def test_bars_come_as_frames(tmp_path: Path) -> None:
    catalogue = BarCatalogue(tmp_path)
    with catalogue.writing():
        catalogue.write(BTC, (OCTOBER, OCTOBER + 60), bar_rows([bar(OCTOBER + 60)]))
    polars = catalogue.frame(Market.UPBIT, "KRW-BTC", Timeframe.M1)
    pandas = catalogue.frame("upbit", "KRW-BTC", "1m", library="pandas")
    assert polars.columns == list(pandas.columns) == list(BAR_FIELDS)
    assert polars["at"][0] == pandas["at"][0] == datetime.fromtimestamp(OCTOBER + 60, UTC)
    assert polars["close"][0] == pandas["close"][0] == 100 + 100 / 9


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (("binance", "BTC", "1m"), "venue 'binance' is unknown; expected one of krx, kis, upbit"),
        (("upbit", "KRW-BTC", "2m"), "timeframe '2m' is unknown"),
        (("upbit", "../x", "1m"), "'../x' is not a symbol"),
        (("upbit", "KRW-BTC", "1m", datetime(2026, 1, 1)), "has no time zone"),  # noqa: DTZ001
    ],
)
def test_a_wrong_name_is_refused(tmp_path: Path, call: tuple[str, str, str], text: str) -> None:
    with pytest.raises(RefusedError, match=text):
        BarCatalogue(tmp_path).bars(*call)


def test_without_pyarrow_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    catalogue = BarCatalogue(tmp_path)
    with catalogue.writing(), pytest.raises(RefusedError, match=r"pip install 'qts\[export\]'"):
        catalogue.write(BTC, (OCTOBER, OCTOBER + 60), bar_rows([bar(OCTOBER + 60)]))


# Crashes and damage


def test_one_process_writes(tmp_path: Path) -> None:
    with BarCatalogue(tmp_path).writing():
        with pytest.raises(RefusedError, match="another download or import writes to"):
            BarCatalogue(tmp_path).writing().__enter__()
        with BarCatalogue(tmp_path, simulated=True).writing():
            pass


def test_the_draft_of_a_killed_writer_is_removed(tmp_path: Path) -> None:
    catalogue = BarCatalogue(tmp_path)
    draft = tmp_path / "catalogue" / "upbit" / "1m" / "KRW-BTC" / "2026-10.draft"
    draft.parent.mkdir(parents=True)
    draft.write_bytes(b"half")
    with catalogue.writing():
        assert not draft.exists()


def test_a_file_that_cannot_be_written_keeps_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue = BarCatalogue(tmp_path)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with catalogue.writing():
        catalogue.write(BTC, (OCTOBER, OCTOBER + 60), bar_rows([bar(OCTOBER + 60)]))
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OperationError, match=r"2026-10\.parquet cannot be written: No space"):
            catalogue.write(BTC, (OCTOBER + 60, OCTOBER + 120), bar_rows([bar(OCTOBER + 120)]))
    assert BarCatalogue(tmp_path).covered(BTC) == [(OCTOBER, OCTOBER + 60)]


def damaged(catalogue: BarCatalogue) -> list[Finding]:
    return [each for each in check_catalogue(catalogue, TradingCalendar()) if each.damage]


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    catalogue = BarCatalogue(tmp_path)
    with catalogue.writing():
        catalogue.write(BTC, (OCTOBER, OCTOBER + 60), bar_rows([bar(OCTOBER + 60)]))
    (path,) = catalogue.files(BTC)
    data = path.read_bytes()
    other = path.with_name("notes.parquet")
    for content in (b"", data[:100], data[:-4], b"x" * 200):
        path.write_bytes(content)
        (finding,) = damaged(catalogue)
        assert finding.where == str(path)
        assert "cannot be read" in finding.problem
        with pytest.raises(OperationError, match=r"2026-10\.parquet cannot be read"):
            catalogue.bars("upbit", "KRW-BTC", "1m")
    path.write_bytes(data)
    other.write_bytes(data)
    assert [each.where for each in damaged(catalogue)] == [str(other)]


@pytest.mark.parametrize(
    ("bars", "text"),
    [
        ([bar(OCTOBER + 120), bar(OCTOBER + 60)], "not in order of time"),
        ([bar(OCTOBER + 60), bar(OCTOBER + 60)], "1 bars twice"),
        ([bar(OCTOBER + 60)._replace(high=1.0)], "1 bars with a high below another price"),
        ([bar(OCTOBER + 60)._replace(low=1e9)], "1 bars with a low above another price"),
        ([bar(OCTOBER + 60)._replace(close=math.nan)], "1 bars with a price that is not positive"),
        ([bar(OCTOBER + 60)._replace(open=-1.0, low=-1.0)], "a price that is not positive"),
        ([bar(OCTOBER + 60)._replace(volume=-1.0)], "a volume that is not a number or negative"),
    ],
)
def test_wrong_rows_are_damage(tmp_path: Path, bars: list[Bar], text: str) -> None:
    catalogue = BarCatalogue(tmp_path)
    with catalogue.writing():
        catalogue.write(BTC, (OCTOBER, OCTOBER + 600), bar_rows(bars))
    assert any(text in each.problem for each in damaged(catalogue))


def test_days_without_data_differ_from_days_without_a_trade(tmp_path: Path) -> None:
    catalogue = BarCatalogue(tmp_path)
    monday = datetime(2026, 11, 2, 6, 30, tzinfo=UTC)  # 15:30 in Seoul
    closes = [(monday + timedelta(days=n)).timestamp() for n in range(12)]
    with catalogue.writing():
        catalogue.write(
            SAMSUNG, (closes[0] - 86_400, closes[2]), bar_rows([bar(closes[0]), bar(closes[2])])
        )
        catalogue.write(SAMSUNG, (closes[7], closes[8]), bar_rows([bar(closes[8])]))
    problems = [each.problem for each in check_catalogue(catalogue, TradingCalendar())]
    assert problems == [
        "not downloaded: 2026-11-04 06:30 UTC to 2026-11-09 06:30 UTC",
        "no trade on 1 trading days, the last is 2026-11-03",
    ]
    assert catalogue.info(SAMSUNG).gaps == 1
