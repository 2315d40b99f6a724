"""The plan: scan interval, and the limit that binds it."""

from __future__ import annotations

import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from qts.feed import Demand, plan_scan
from qts.feed.planner import BURST_SHARE, REPLY_S, WATCH_INTERVAL_S, burst_cost
from qts.venues import MAX_WATCHED_SHARE, RateLimitConfig, RequestPriority, quota_for

REAL = RateLimitConfig(per_second=18)
DAY = Demand(symbols=2500, per_call=30, seconds_left=23_400, day_left=100_000)


def test_a_real_key_scans_2500_symbols_every_30_seconds() -> None:
    made = plan_scan(REAL, DAY)
    assert made.description == "30.0 s scan, 84 calls, 2.8/s, 65 % of today's quota"
    assert made.granted
    assert made.bursts == 10


def test_single_quotes_are_bound_by_the_day_and_the_plan_says_so() -> None:
    single = Demand(symbols=2500, per_call=1, seconds_left=23_400, day_left=100_000)
    made = plan_scan(RateLimitConfig(per_second=20), single)
    assert made.bound == "day"
    assert round(made.interval_s, 1) == 670.1  # 2,500 x 23,400 / (97,000 x 0.9)
    assert "30 s is not possible: the day allows 670.1 s" in made.render()
    assert "111 symbols could be scanned every 30 s" in made.render()


def test_a_paper_key_has_no_quota_for_bursts() -> None:
    paper = RateLimitConfig(per_second=1, per_minute=1000)
    single = Demand(symbols=2500, per_call=1, seconds_left=23_400, day_left=100_000)
    made = plan_scan(paper, single)
    assert (made.bursts, made.bound, round(made.interval_s)) == (0, "second", 2750)


def test_an_empty_day_says_so() -> None:
    made = plan_scan(REAL, Demand(symbols=2500, per_call=30, seconds_left=600, day_left=10))
    assert math.isinf(made.interval_s)
    assert made.rate_per_s == 0
    assert made.description == "no scan: the day's requests are used up"
    assert "no symbol can be scanned" in made.render()


def test_what_is_held_comes_first_and_the_plan_shows_it() -> None:
    held = msgspec.structs.replace(DAY, watched=50, streamed=40)
    made = plan_scan(REAL, held)
    assert made.watch_description == "40 streamed, 50 polled every 1.0 s = 2/s"
    assert "watched    40 streamed, 50 polled every 1.0 s = 2/s" in made.render()
    assert "(15 / 1.1 s - 2/s - 1/s)" in made.render()
    assert (made.bound, round(made.interval_s, 1)) == ("day", 43.5)  # 84 / ((4.145 - 2) x 0.9)
    assert "watched    none" in plan_scan(REAL, DAY).render()


def test_more_than_the_key_can_poll_each_second_is_polled_at_a_stated_interval() -> None:
    paper = RateLimitConfig(per_second=1, per_minute=1000)
    demand = Demand(symbols=2500, per_call=1, seconds_left=23_400, day_left=100_000, watched=4)
    made = plan_scan(paper, demand)
    assert made.watch_description == "4 polled every 5.5 s = 0.73/s"
    assert round(made.interval_s) == 13_750  # a fifth of the requests is left to the scan


def test_a_shorter_day_allows_a_faster_scan() -> None:
    def interval(seconds_left: float) -> float:
        demand = Demand(
            symbols=2500, per_call=1, seconds_left=seconds_left, day_left=50_000, asked_s=1
        )
        return plan_scan(RateLimitConfig(per_second=20), demand).interval_s

    assert interval(23_400) > interval(20_000) > interval(15_000)


@given(
    st.builds(
        RateLimitConfig,
        per_second=st.integers(1, 100),
        per_minute=st.integers(1, 5000),
        per_day=st.integers(1, 300_000),
    ),
    st.builds(
        Demand,
        symbols=st.integers(1, 5000),
        per_call=st.sampled_from([1, 30]),
        seconds_left=st.floats(1, 86_400),
        day_left=st.integers(0, 300_000),
        asked_s=st.floats(1, 3600),
        watched=st.integers(0, 5000),
        streamed=st.integers(0, 40),
    ),
)
def test_every_plan_fits_every_limit(limits: RateLimitConfig, demand: Demand) -> None:
    made = plan_scan(limits, demand)
    quotes = quota_for(limits, RequestPriority.NORMAL)
    bursts = burst_cost(made.bursts, demand.per_call)
    reserve = BURST_SHARE if made.bursts else 0.0
    spendable = max(0, demand.day_left - (limits.per_day - quotes.day))
    watched = made.watch_per_s
    assert made.interval_s >= demand.asked_s
    assert made.watch_interval_s >= WATCH_INTERVAL_S
    polled = watched * made.watch_interval_s * demand.per_call * 1.000001
    assert polled >= demand.watched or not spendable
    assert watched * (1 + REPLY_S) <= MAX_WATCHED_SHARE * quotes.second * 1.000001
    assert watched * (60 + REPLY_S) <= MAX_WATCHED_SHARE * quotes.minute * 1.000001
    assert watched * demand.seconds_left <= MAX_WATCHED_SHARE * spendable * 1.000001
    left = spendable - watched * demand.seconds_left
    assert made.rate_per_s == 0 or (
        (made.rate_per_s + bursts + watched) * (1 + REPLY_S) <= quotes.second * 1.000001
        and (made.rate_per_s + bursts + watched) * (60 + REPLY_S) <= quotes.minute * 1.000001
        and made.rate_per_s * demand.seconds_left <= left * (1 - reserve) * 1.000001
    )
    assert made.interval_s == max(made.by.values())
    assert made.render()
