"""What counts as a surge, and what the cache remembers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.feed import PriceCache, SurgeDetector


def _detector(ttl_s: float = 600.0) -> tuple[PriceCache, SurgeDetector]:
    cache = PriceCache(ttl_s)
    return cache, SurgeDetector(cache)


@pytest.mark.parametrize(("after", "surges"), [(103.5, True), (96.5, True), (103.0, False)])
def test_more_than_three_percent_since_the_previous_scan_is_a_surge(
    after: float, surges: bool
) -> None:
    _, detector = _detector()
    assert detector.observe("005930", 100.0, 0, 0.0) is None
    found = detector.observe("005930", after, 0, 30.0)
    assert (found is not None) is surges


def test_a_slow_climb_is_no_surge() -> None:
    _, detector = _detector()
    prices = [100.0 * 1.014**n for n in range(20)]
    found = [detector.observe("A", price, 0, 30.0 * n) for n, price in enumerate(prices)]
    assert found == [None] * 20


@given(st.floats(0.031, 0.3), st.floats(0.0, 1.0))
def test_a_poll_in_the_middle_of_a_jump_hides_nothing_of_it(size: float, seen_half: float) -> None:
    _, detector = _detector()
    detector.observe("A", 100.0, 0, 0.0)
    detector.observe("A", 100.0, 0, 30.0)
    detector.observe("A", 100.0 * (1 + size * seen_half), 0, 60.0)
    found = detector.observe("A", 100.0 * (1 + size), 0, 90.0)
    assert found is not None
    assert found.change == pytest.approx(size)


def test_a_jump_is_over_after_two_scans() -> None:
    _, detector = _detector()
    prices = [100.0, 100.0, 105.0, 105.0, 105.0, 105.0]
    found = [detector.observe("A", price, 0, 30.0 * n) for n, price in enumerate(prices)]
    assert [n for n, surge in enumerate(found) if surge] == [2, 3]


def test_a_jump_spread_over_many_ticks_is_a_surge() -> None:
    _, detector = _detector()
    found = [detector.observe("A", 100.0 + n * 0.5, 0, n * 1.0) for n in range(10)]
    assert [n for n, surge in enumerate(found) if surge] == [7, 8, 9]


def test_running_volume_at_a_steady_rate_is_no_surge_however_large() -> None:
    _, detector = _detector()
    found = [detector.observe("A", 100.0, 1_000 * n, 30.0 * n) for n in range(100)]
    assert found == [None] * 100


def test_twice_the_own_rate_of_volume_is_a_surge() -> None:
    _, detector = _detector()
    for n in range(10):
        assert detector.observe("A", 100.0, 1_000 * n, 30.0 * n) is None
    found = detector.observe("A", 100.0, 9_000 + 2_100, 300.0)
    assert found is not None
    assert found.volume_ratio == pytest.approx(2.1)


def test_volume_that_starts_again_at_zero_is_a_new_day_not_a_surge() -> None:
    _, detector = _detector()
    for n in range(10):
        detector.observe("A", 100.0, 1_000 * n, 30.0 * n)
    assert detector.observe("A", 120.0, 5, 330.0) is None


def test_a_halted_symbol_quoted_at_zero_leaves_no_trace() -> None:
    cache, detector = _detector()
    detector.observe("A", 100.0, 10, 0.0)
    assert detector.observe("A", 0.0, 0, 30.0) is None
    assert cache.price("A", 31.0) == 100.0


def test_a_price_older_than_its_time_is_neither_given_nor_compared() -> None:
    cache, detector = _detector(ttl_s=60.0)
    detector.observe("A", 100.0, 0, 0.0)
    assert cache.price("A", 61.0) is None
    assert detector.observe("A", 200.0, 0, 61.0) is None
    assert cache.clean(200.0) == 1
    assert len(cache) == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ABCD"),
            st.floats(0.01, 1e6),
            st.integers(0, 10**9),
            st.floats(0, 400),
        ),
        max_size=60,
    )
)
def test_the_cache_holds_the_latest_young_price_of_each_symbol(
    seen: list[tuple[str, float, int, float]],
) -> None:
    cache, detector = _detector(ttl_s=600.0)
    model: dict[str, tuple[float, float]] = {}
    at = 0.0
    for symbol, price, volume, gap in seen:
        at += gap
        cache.clean(at)
        model = {name: kept for name, kept in model.items() if at - kept[1] <= 600.0}
        detector.observe(symbol, price, volume, at)
        model[symbol] = (price, at)
        assert len(cache) == len(model)
        assert all(cache.price(name, at) == kept[0] for name, kept in model.items())


def test_2500_symbols_take_tens_of_bytes_each() -> None:
    cache, detector = _detector()
    for n in range(2500):
        detector.observe(f"{n:06}", 100.0, 0, 0.0)
    columns, anchors = cache.columns
    size = sum(column.itemsize for column in columns) + anchors.itemsize
    assert size == 60
    assert len(anchors) == 2500
