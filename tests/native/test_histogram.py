"""The histogram against exact percentiles, and the laws of merging."""

from __future__ import annotations

import math
from fractions import Fraction
from threading import Thread

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts._native import Histogram

TOP = 2**42 - 1
values = st.lists(
    st.one_of(
        st.integers(0, 2000), st.integers(0, TOP), st.integers(0, 42).map(lambda n: 2**n - 1)
    ),
    max_size=200,
)
Facts = tuple[list[tuple[int, int, int]], int, int, int, int]


def of(recorded: list[int]) -> Histogram:
    histogram = Histogram()
    for value in recorded:
        histogram.record(value)
    return histogram


def merged(*parts: Histogram) -> Histogram:
    whole = Histogram()
    for part in parts:
        whole.merge(part)
    return whole


def facts(histogram: Histogram) -> Facts:
    return (
        histogram.buckets(),
        histogram.count,
        histogram.sum,
        histogram.min,
        histogram.max,
    )


@given(values.filter(bool), st.decimals(0, 100, places=3))
def test_percentile_is_within_a_tenth_of_a_percent(recorded: list[int], percent: Fraction) -> None:
    rank = max(1, math.ceil(Fraction(percent) * len(recorded) / 100))
    exact = sorted(recorded)[rank - 1]
    assert abs(of(recorded).percentile(float(percent)) - exact) <= exact / 1000


@given(values)
def test_count_sum_min_max_and_mean_are_exact(recorded: list[int]) -> None:
    histogram = of(recorded)
    assert histogram.count == len(recorded)
    assert histogram.sum == sum(recorded)
    assert histogram.min == min(recorded, default=0)
    assert histogram.max == max(recorded, default=0)
    assert histogram.mean == pytest.approx(sum(recorded) / max(1, len(recorded)))


@given(values)
def test_every_value_lies_in_a_bucket_that_counts_it(recorded: list[int]) -> None:
    for low, high, count in of(recorded).buckets():
        assert count == sum(low <= value <= high for value in recorded)
        assert high - low <= low / 512


@given(values, values)
def test_merge_commutes_and_equals_recording_everything(a: list[int], b: list[int]) -> None:
    whole = facts(of(a + b))
    assert facts(merged(of(a), of(b))) == whole
    assert facts(merged(of(b), of(a))) == whole


@given(values, values, values)
def test_merge_is_associative(a: list[int], b: list[int], c: list[int]) -> None:
    left = merged(merged(of(a), of(b)), of(c))
    right = merged(of(a), merged(of(b), of(c)))
    assert facts(left) == facts(right)


@given(values)
def test_arrays_count_like_single_values(recorded: list[int]) -> None:
    for dtype in (np.uint64, np.int64):
        histogram = Histogram()
        histogram.record_many(np.array(recorded, dtype=dtype))
        assert facts(histogram) == facts(of(recorded))


def test_negative_values_are_refused_and_nothing_is_counted() -> None:
    histogram = Histogram()
    with pytest.raises(ValueError, match="negative"):
        histogram.record_many(np.array([5, -1], dtype=np.int64))
    with pytest.raises(TypeError):
        histogram.record(-1)
    with pytest.raises(TypeError):
        histogram.record_many(np.array([1.5]))
    assert histogram.count == 0


@pytest.mark.parametrize("percent", [-0.1, 100.1, math.nan, math.inf])
def test_percentile_outside_0_to_100_is_refused(percent: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 100"):
        of([1]).percentile(percent)


def test_values_above_the_top_still_count() -> None:
    histogram = of([10, TOP + 1, 2**63])
    assert histogram.count == 3
    assert histogram.max == 2**63
    assert histogram.percentile(100) == 2**63


def test_threads_lose_no_value() -> None:
    histogram = Histogram()
    block = np.arange(10_000, dtype=np.uint64)
    threads = [Thread(target=histogram.record_many, args=(block,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert histogram.count == 40_000
    assert histogram.sum == 4 * int(block.sum())
