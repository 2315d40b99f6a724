"""Candles of the simulators: the venues' paging, the same bars whoever asks and whenever."""

from __future__ import annotations

import itertools
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from qts.domain import ManualClock
from qts.simulators.market.history import COIN_DAYS, STOCK_DAYS, MarketHistory
from qts.simulators.market.markets import CoinMarket, StockMarket
from qts.simulators.market.rules import COIN, at, is_open, phase_at
from tests.simulators.clients import Kis, Upbit
from tests.simulators.conftest import StartKis

MONDAY = date(2026, 11, 16)
BTC = "KRW-BTC"


async def kis_days(kis: Kis, first: str, last: str, **more: str) -> list[dict[str, str]]:
    values = {
        "FID_COND_MRKT_DIV_CODE": "J",
        "FID_INPUT_ISCD": "005930",
        "FID_INPUT_DATE_1": first,
        "FID_INPUT_DATE_2": last,
        "FID_PERIOD_DIV_CODE": "D",
        "FID_ORG_ADJ_PRC": "0",
    }
    path = "quotations/inquire-daily-itemchartprice"
    reply = await kis.get(path, "FHKST03010100", **{**values, **more})
    assert reply.body["rt_cd"] == "0", reply.body
    return list(reply.body["output2"])


async def kis_minutes(
    kis: Kis, day: str, hour: str, code: str = "005930", crosses: str = "Y"
) -> list[dict[str, str]]:
    reply = await kis.get(
        "quotations/inquire-time-dailychartprice",
        "FHKST03010230",
        FID_COND_MRKT_DIV_CODE="J",
        FID_INPUT_ISCD=code,
        FID_INPUT_DATE_1=day,
        FID_INPUT_HOUR_1=hour,
        FID_PW_DATA_INCU_YN=crosses,
        FID_FAKE_TICK_INCU_YN="",
    )
    assert reply.body["rt_cd"] == "0", reply.body
    return list(reply.body["output2"])


async def kis_today(kis: Kis, hour: str) -> list[dict[str, str]]:
    reply = await kis.get(
        "quotations/inquire-time-itemchartprice",
        "FHKST03010200",
        FID_COND_MRKT_DIV_CODE="J",
        FID_INPUT_ISCD="005930",
        FID_INPUT_HOUR_1=hour,
        FID_PW_DATA_INCU_YN="Y",
        FID_ETC_CLS_CODE="",
    )
    return list(reply.body["output2"])


# KIS


async def test_days_come_newest_first_a_hundred_at_most(kis: Kis) -> None:
    rows = await kis_days(kis, "20250101", "20261113")
    days = [row["stck_bsop_date"] for row in rows]
    assert len(days) == 100
    assert days == sorted(days, reverse=True)
    assert days[0] == "20261113"  # the newest of the window
    assert all(is_open(datetime.strptime(day, "%Y%m%d").date()) for day in days)  # noqa: DTZ007
    older = await kis_days(kis, "20250101", (date(2026, 6, 1)).strftime("%Y%m%d"))
    both = {row["stck_bsop_date"]: row for row in rows}
    again = [row for row in older if row["stck_bsop_date"] in both]
    assert [row["stck_clpr"] for row in again] == [
        both[row["stck_bsop_date"]]["stck_clpr"] for row in again
    ]


async def test_the_last_close_is_the_base_of_today(kis: Kis) -> None:
    (row,) = await kis_days(kis, "20261113", "20261115")
    assert row["stck_clpr"] == (await kis.price()).body["output"]["stck_sdpr"] == "71900"


async def test_where_nothing_exists_rows_are_blank(kis: Kis) -> None:
    (blank,) = await kis_days(kis, "20100101", "20101231")
    assert set(blank.values()) == {""}
    assert await kis_days(kis, "20261114", "20261115") == [{}]  # a weekend
    young = next(i for i in range(10, 40) if kis.simulator.history.listed_on(i) > 737000)
    code = kis.simulator.market.universe.codes[young]
    listed = date.fromordinal(kis.simulator.history.listed_on(young))
    rows = await kis_days(
        kis, "20140102", (listed + timedelta(days=20)).strftime("%Y%m%d"), FID_INPUT_ISCD=code
    )
    assert 5 < len(rows) < 20
    assert set(rows[-1].values()) == {""}
    assert all(row["stck_bsop_date"] >= listed.strftime("%Y%m%d") for row in rows[:-1])


async def test_raw_days_before_a_split_are_a_multiple_of_adjusted_ones(kis: Kis) -> None:
    history = kis.simulator.history
    index = next(i for i in range(40) if history.split_on(i))
    code, split = kis.simulator.market.universe.codes[index], history.split_on(index) or 0
    last = date.fromordinal(split + 4).strftime("%Y%m%d")
    adjusted, raw = [
        await kis_days(kis, "20230101", last, FID_INPUT_ISCD=code, FID_ORG_ADJ_PRC=flag)
        for flag in "01"
    ]
    at_split = date.fromordinal(split).strftime("%Y%m%d")
    ratios = {
        int(a["stck_clpr"]) / int(b["stck_clpr"]): a["stck_bsop_date"] < at_split
        for a, b in zip(raw, adjusted, strict=True)
        if a["acml_vol"] != "0"
    }
    assert ratios == {1.0: False, 5.0: True}


@pytest.mark.parametrize(
    ("name", "value"),
    [("FID_PERIOD_DIV_CODE", "X"), ("FID_ORG_ADJ_PRC", ""), ("FID_INPUT_DATE_1", "2026-1-1")],
)
async def test_wrong_values_are_input_errors(kis: Kis, name: str, value: str) -> None:
    values = {
        "FID_INPUT_ISCD": "005930",
        "FID_INPUT_DATE_1": "20260101",
        "FID_INPUT_DATE_2": "20260201",
        "FID_PERIOD_DIV_CODE": "D",
        "FID_ORG_ADJ_PRC": "0",
    }
    reply = await kis.get(
        "quotations/inquire-daily-itemchartprice", "FHKST03010100", **{**values, name: value}
    )
    assert reply.code == "OPSQ2001"


async def test_past_minutes_run_over_into_the_day_before(kis: Kis) -> None:
    rows = await kis_minutes(kis, "20261113", "093000")
    assert len(rows) == 120
    assert [row["stck_bsop_date"] for row in rows[:31]] == ["20261113"] * 31
    assert {row["stck_bsop_date"] for row in rows[31:]} == {"20261112"}
    assert (rows[0]["stck_cntg_hour"], rows[30]["stck_cntg_hour"]) == ("093000", "090000")
    assert rows[31]["stck_cntg_hour"][:4] == "1530"  # 15:20 to 15:29 is an auction
    assert rows[32]["stck_cntg_hour"] == "151900"
    assert len(await kis_minutes(kis, "20261113", "093000", crosses="N")) == 31


async def test_a_full_day_has_381_minutes_that_sum_to_its_bar(kis: Kis) -> None:
    rows: list[dict[str, str]] = []
    hour = "235959"
    while True:
        page = await kis_minutes(kis, "20261112", hour, crosses="N")
        rows += page
        if len(page) < 120:
            break
        oldest = datetime.strptime(page[-1]["stck_cntg_hour"], "%H%M%S")  # noqa: DTZ007
        hour = (oldest - timedelta(minutes=1)).strftime("%H%M%S")
    (day,) = await kis_days(kis, "20261112", "20261112")
    assert len(rows) == 381
    assert day["stck_oprc"] == rows[-1]["stck_oprc"]
    assert day["stck_clpr"] == rows[0]["stck_prpr"]
    assert int(day["stck_hgpr"]) == max(int(row["stck_hgpr"]) for row in rows)
    assert int(day["acml_vol"]) == sum(int(row["cntg_vol"]) for row in rows)
    assert day["acml_tr_pbmn"] == rows[0]["acml_tr_pbmn"]


async def test_past_minutes_end_after_a_year_and_are_missing_where_nothing_traded(
    kis: Kis,
) -> None:
    assert await kis_minutes(kis, "20251114", "235959") == []
    rates = kis.simulator.market.universe.trade_rate
    thin = kis.simulator.market.universe.codes[int(np.argmin(rates[:38]))]
    rows = await kis_minutes(kis, "20261112", "235959", thin)
    hours = [row["stck_cntg_hour"] for row in rows if row["stck_bsop_date"] == "20261112"]
    assert 50 < len(hours) < 381
    assert len(set(hours)) == len(hours)


async def test_a_paper_key_has_no_past_minutes(start_kis: StartKis) -> None:
    kis = await start_kis(paper=True)
    reply = await kis.get("quotations/inquire-time-dailychartprice", "FHKST03010230")
    assert reply.code == "EGW02006"


async def test_minutes_of_today_are_the_ticks_of_the_market(kis: Kis, clock: ManualClock) -> None:
    market = kis.simulator.market
    prices: dict[int, list[int]] = {}
    volumes: dict[int, int] = {}
    for _ in range(200):
        await clock.advance(1)
        kis.simulator.catch_up()
        minute = market.time - market.time % 60
        if market.traded[0]:
            prices.setdefault(minute, []).append(int(market.price[0]))
            volumes[minute] = volumes.get(minute, 0) + int(market.size[0])
    rows = await kis_minutes(kis, "20261116", "235959", crosses="N")
    by_hour = {row["stck_cntg_hour"]: row for row in rows}
    assert list(by_hour) == ["090300", "090200", "090100", "090000"]
    for n, minute in enumerate(sorted(prices)):
        row, seen = by_hour[f"090{n}00"], prices[minute]
        if n:  # the opening auction is before the first second of the test
            assert int(row["cntg_vol"]) == volumes[minute]
            assert (int(row["stck_oprc"]), int(row["stck_prpr"])) == (seen[0], seen[-1])
            assert (int(row["stck_hgpr"]), int(row["stck_lwpr"])) == (max(seen), min(seen))
    (day,) = await kis_days(kis, "20261116", "20261116")
    assert sum(int(row["cntg_vol"]) for row in rows) == int(day["acml_vol"])
    assert int(day["stck_clpr"]) == int(rows[0]["stck_prpr"]) == int(market.price[0])


async def test_a_future_hour_repeats_the_current_price(kis: Kis, clock: ManualClock) -> None:
    await clock.advance(130)
    rows = await kis_today(kis, "091000")
    assert [row["stck_cntg_hour"] for row in rows][:2] == ["091000", "090900"]
    assert rows[0]["stck_oprc"] == rows[0]["stck_prpr"] == str(kis.simulator.market.price[0])
    assert rows[0]["cntg_vol"] == "0"
    assert len(rows) == 11
    full = await kis_today(kis, "100000")
    assert len(full) == 30


# Upbit


async def candles(upbit: Upbit, path: str = "minutes/1", **values: str) -> list[dict[str, Any]]:
    reply = await upbit.public(f"candles/{path}", **{"market": BTC, **values})
    assert reply.status == 200, reply.body
    return list(reply.body)


async def test_candles_end_before_to_and_come_newest_first(upbit: Upbit) -> None:
    rows = await candles(upbit, to="2026-11-10T00:00:00Z", count="200")
    starts = [row["candle_date_time_utc"] for row in rows]
    assert len(starts) == 200
    assert starts[0] == "2026-11-09T23:59:00"  # exclusive
    assert starts == sorted(starts, reverse=True)
    same = await candles(upbit, to="2026-11-10T00:00:00", count="200")  # no offset: UTC
    seoul = await candles(upbit, to="2026-11-10T09:00:00+09:00", count="200")
    assert rows == same == seoul
    assert rows[0]["candle_date_time_kst"] == "2026-11-10T08:59:00"


async def test_pages_of_a_thin_symbol_join_without_a_gap(upbit: Upbit) -> None:
    rates = upbit.simulator.market.universe.trade_rate
    thin = upbit.simulator.market.universe.codes[int(np.argmin(rates))]
    pages, to = [], "2026-11-10T00:00:00Z"
    for _ in range(3):
        pages.append(await candles(upbit, market=thin, to=to, count="100"))
        to = pages[-1][-1]["candle_date_time_utc"] + "Z"
    starts = [row["candle_date_time_utc"] for row in itertools.chain(*pages)]
    whole = await candles(upbit, market=thin, to="2026-11-10T00:00:00Z", count="200")
    assert starts[:200] == [row["candle_date_time_utc"] for row in whole]
    assert len(set(starts)) == 300
    first, last = (datetime.fromisoformat(starts[n]) for n in (-1, 0))
    assert (last - first).total_seconds() / 60 > 400  # minutes without a trade are missing


async def test_day_candles_sum_the_minutes_of_a_utc_day(upbit: Upbit) -> None:
    (day,) = await candles(upbit, "days", to="2026-11-10T00:00:00Z", count="1")
    assert (day["candle_date_time_utc"], day["candle_date_time_kst"]) == (
        "2026-11-09T00:00:00",
        "2026-11-09T09:00:00",
    )
    four = await candles(upbit, "minutes/240", to="2026-11-10T00:00:00Z", count="6")
    assert {row["candle_date_time_utc"][:10] for row in four} == {"2026-11-09"}
    assert day["opening_price"] == four[-1]["opening_price"]
    assert day["trade_price"] == four[0]["trade_price"]
    assert day["low_price"] == min(row["low_price"] for row in four)
    volume = sum(row["candle_acc_trade_volume"] for row in four)
    assert day["candle_acc_trade_volume"] == pytest.approx(volume)
    assert {"prev_closing_price", "change_price", "change_rate"} <= day.keys()


@pytest.mark.parametrize("path", ["days", "weeks", "months", "minutes/240"])
async def test_a_day_of_a_coin_that_costs_little_has_a_volume_above_2_to_the_63(
    upbit: Upbit, path: str
) -> None:
    market = upbit.simulator.market
    cheapest = int(np.argmin(market.price))
    usual = float(market.universe.daily_volume[cheapest])
    assert usual > 2**63
    rows = await candles(upbit, path, market=market.universe.codes[cheapest], count="3")
    for row in rows:
        average = row["candle_acc_trade_price"] / row["candle_acc_trade_volume"]
        assert row["low_price"] <= average <= row["high_price"]
    if path == "days":
        assert usual / 3 < rows[1]["candle_acc_trade_volume"] * COIN < usual * 3


async def test_candles_since_the_start_are_the_ticks_of_the_market(
    upbit: Upbit, clock: ManualClock
) -> None:
    market = upbit.simulator.market
    prices: dict[int, list[float]] = {}
    volumes: dict[int, int] = {}
    await clock.advance(60)  # the market starts at 08:59
    upbit.simulator.catch_up()
    while market.time % 3600 < 90:
        await clock.advance(1)
        upbit.simulator.catch_up()
        if market.traded[0]:
            minute = market.time // 60 % 60
            prices.setdefault(minute, []).append(int(market.price[0]) / COIN)
            volumes[minute] = volumes.get(minute, 0) + int(market.size[0])
    rows = await candles(upbit, count="2")
    assert [row["candle_date_time_kst"][11:16] for row in rows] == ["09:01", "09:00"]
    for row in rows:
        minute = int(row["candle_date_time_kst"][14:16])
        seen = prices[minute]
        if minute:  # the test does not see the first second of 09:00
            assert row["opening_price"] == seen[0]
            assert row["candle_acc_trade_volume"] == pytest.approx(volumes[minute] / COIN)
        assert (row["trade_price"], row["unit"]) == (seen[-1], 1)
        assert row["high_price"] >= max(seen)


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("minutes/7", {}),
        ("minutes/1", {"count": "201"}),
        ("minutes/1", {"to": "yesterday"}),
        ("days", {"market": "KRW-NONE"}),
    ],
)
async def test_wrong_candle_requests_are_refused(
    upbit: Upbit, path: str, values: dict[str, str]
) -> None:
    reply = await upbit.public(f"candles/{path}", **{"market": BTC, **values})
    assert reply.status in (400, 404)


async def test_candles_are_limited_to_ten_a_second(upbit: Upbit) -> None:
    replies = [await upbit.public("candles/days", market=BTC) for _ in range(11)]
    assert [reply.status for reply in replies] == [200] * 10 + [429]


# History


def test_bars_are_the_same_whatever_was_asked_before() -> None:
    market = StockMarket(at(MONDAY, 9), seed=3, symbols=30)

    def history() -> MarketHistory:
        return MarketHistory(market.universe, market.table, 3, market.time, STOCK_DAYS)

    first, other = history(), history()
    window = at(date(2026, 10, 1)), at(date(2026, 10, 20))
    for index in range(5):
        other.day(index, date(2024, 2, 1).toordinal())
    for mine, theirs in zip(first.minutes(4, *window), other.minutes(4, *window), strict=True):
        assert np.array_equal(mine, theirs)


def test_older_days_do_not_depend_on_the_start() -> None:
    def bars(start: date) -> Any:
        market = CoinMarket(at(start, 13), seed=3, symbols=12)
        history = MarketHistory(market.universe, market.table, 3, market.time, COIN_DAYS)
        return history.day(2, date(2026, 9, 1).toordinal())

    assert [list(c) for c in bars(MONDAY)] == [list(c) for c in bars(date(2026, 10, 2))]


class Trades:
    """A market of two symbols of which the first trades."""

    time = 0
    traded = np.array([True, False])
    price = np.array([100, 200])
    size = np.array([3, 5])


def test_a_market_that_runs_for_days_keeps_their_bars() -> None:
    market = StockMarket(at(MONDAY, 9), seed=1, symbols=2)
    history = MarketHistory(market.universe, market.table, 1, market.time, STOCK_DAYS)
    trades, tuesday = Trades(), MONDAY + timedelta(days=1)
    for time, price in (
        (at(MONDAY, 9), 100),
        (at(MONDAY, 9) + 59, 120),
        (at(MONDAY, 15, 30), 110),
        (at(MONDAY, 17), 500),  # after the regular session
        (at(tuesday, 9), 130),
    ):
        trades.time, trades.price = time, np.array([price, 200])
        history.record(trades, phase_at(time))
    minutes = history.minutes(0, at(MONDAY), at(MONDAY + timedelta(days=2)))
    assert minutes.start.tolist() == [at(MONDAY, 9), at(MONDAY, 15, 30), at(tuesday, 9)]
    assert minutes.close.tolist() == [120, 110, 130]
    assert [int(column[0]) for column in history.day(0, MONDAY.toordinal())[1:]] == [
        100, 120, 100, 110, 9, 990
    ]  # fmt: skip
    assert history.day(0, tuesday.toordinal()).volume.tolist() == [3]
    assert not len(history.minutes(1, at(MONDAY), at(tuesday)).start)
