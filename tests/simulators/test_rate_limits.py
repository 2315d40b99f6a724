"""Request windows: exact for any pattern of arrivals."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qts.simulators import RequestLimits
from qts.simulators.server import Meter, Window

NS = 10**9
GAPS = st.lists(st.integers(0, NS // 3), min_size=1, max_size=200)


@given(gaps=GAPS, limit=st.integers(1, 12))
def test_no_sliding_second_holds_more_than_the_limit(gaps: list[int], limit: int) -> None:
    window, now = Window(1, limit), 0
    granted: list[int] = []
    for gap in gaps:
        now += gap
        fits = len([moment for moment in granted if moment > now - NS]) < limit
        assert window.has_capacity(now) == fits
        if fits:
            window.grant(now)
            granted.append(now)


@given(gaps=GAPS)
def test_the_worst_second_is_the_worst_of_all_arrivals(gaps: list[int]) -> None:
    meter, now, arrived = Meter(RequestLimits(second=3)), 0, []
    for gap in gaps:
        now += gap
        meter.admit(now)
        arrived.append(now)
    worst = max(sum(1 for a in arrived if moment - NS < a <= moment) for moment in arrived)
    stats = meter.stats()
    assert stats["worst"] == {"second": worst, "minute": len(gaps), "day": len(gaps)}


def test_a_fixed_second_is_aligned_to_the_clock() -> None:
    window = Window(1, 1, "fixed")
    window.grant(NS - 1)
    assert not window.has_capacity(NS - 1)
    assert window.has_capacity(NS)


def test_rejected_requests_do_not_count_as_used() -> None:
    meter = Meter(RequestLimits(second=1))
    assert [meter.admit(n * NS // 2) for n in range(5)] == [True, False, True, False, True]
    assert meter.refused == 2


def test_a_day_is_the_last_24_hours() -> None:
    meter = Meter(RequestLimits(second=0, minute=0, day=2))
    hours = [0, 1, 23, 24, 24, 25]
    assert [meter.admit(h * 3600 * NS) for h in hours] == [True, True, False, True, False, True]
