"""Latency histograms: recording, percentiles, Prometheus export."""

from __future__ import annotations

import itertools
import math
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from qts import telemetry
from qts.telemetry import LatencyHistogram, latency

_numbers = itertools.count()
latencies = st.lists(st.integers(1, 3_600_000_000_000), min_size=1, max_size=200)


@pytest.fixture
def name() -> str:
    return f"qts_test_{next(_numbers)}_latency_seconds"


def samples(prefix: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return what a scraper reads of one metric: (name, labels) -> value."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(telemetry.render_metrics().decode())
        for sample in family.samples
        if sample.name.startswith(prefix)
    }


@given(latencies, st.sampled_from([50.0, 95.0, 99.0, 99.9, 100.0]))
def test_percentile_is_within_a_thousandth(values: list[int], percent: float) -> None:
    histogram = LatencyHistogram()
    for value in values:
        histogram.record(value)
    exact = sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]
    assert histogram.percentile(percent) == pytest.approx(exact, rel=0.001, abs=1)


@given(latencies)
def test_count_sum_and_extremes_are_exact(values: list[int]) -> None:
    histogram = LatencyHistogram()
    histogram.record_many(np.array(values, dtype=np.int64))
    assert (histogram.count, histogram.sum) == (len(values), sum(values))
    assert (histogram.min, histogram.max) == (min(values), max(values))
    assert histogram.mean == pytest.approx(sum(values) / len(values))


@given(latencies, latencies)
def test_merged_is_as_if_recorded_in_one(left: list[int], right: list[int]) -> None:
    one, other, both = LatencyHistogram(), LatencyHistogram(), LatencyHistogram()
    for target, values in ((one, left), (other, right), (both, left + right)):
        target.record_many(np.array(values, dtype=np.int64))
    one.merge(other)
    assert (one.count, one.sum, one.min, one.max) == (both.count, both.sum, both.min, both.max)
    assert one.percentile(99) == both.percentile(99)


def test_summary_is_rendered_in_seconds(name: str) -> None:
    histogram = latency(name, "Time in lane.", lane="P0")
    histogram.record_many(np.arange(1, 1001, dtype=np.int64) * 1000)
    read = samples(name)
    quantiles = {
        dict(labels)["quantile"]: value for (_, labels), value in read.items() if len(labels) == 2
    }
    expected = {"0.5": 500e-6, "0.95": 950e-6, "0.99": 990e-6, "0.999": 999e-6}
    assert quantiles == pytest.approx(expected, rel=0.001)
    assert read[(f"{name}_count", (("lane", "P0"),))] == 1000
    assert read[(f"{name}_sum", (("lane", "P0"),))] == pytest.approx(500_500e-6)
    maximum = name.removesuffix("_seconds") + "_max_seconds"
    assert samples(maximum) == {(maximum, (("lane", "P0"),)): 1000e-6}


def test_labels_are_separate_under_one_name(name: str) -> None:
    latency(name, "Time.", lane="P0").record(1)
    latency(name, "Time.", lane="P1").record_many(np.array([1, 2], dtype=np.int64))
    read = samples(f"{name}_count")
    assert list(read.values()) == [1, 2]
    assert telemetry.render_metrics().decode().count(f"# TYPE {name} summary") == 1


def test_nothing_recorded_shows_no_quantiles(name: str) -> None:
    latency(name, "Time.")
    assert samples(name) == {(f"{name}_count", ()): 0, (f"{name}_sum", ()): 0}


def test_same_name_and_labels_return_the_same_histogram(name: str) -> None:
    assert latency(name, "Time.", lane="P0", venue="krx") is latency(
        name, "Time.", venue="krx", lane="P0"
    )


def test_other_labels_under_the_same_name_are_refused(name: str) -> None:
    latency(name, "Time.", lane="P0")
    with pytest.raises(ValueError, match=r"has labels \('lane',\), not \('venue',\)"):
        latency(name, "Time.", venue="krx")


def test_name_of_another_metric_is_refused_both_ways(name: str) -> None:
    latency(name, "Time.")
    with pytest.raises(ValueError, match=name):
        telemetry.gauge(name, "Something else.")
    telemetry.gauge(f"other_{name}", "Something else.")
    with pytest.raises(ValueError, match=name):
        latency(f"other_{name}", "Time.")


def test_name_must_end_in_seconds() -> None:
    with pytest.raises(ValueError, match="must end in _seconds"):
        latency("qts_lane_latency_ms", "Time.")


def test_threads_record_and_render_at_once_and_nothing_is_lost(name: str) -> None:
    histogram = latency(name, "Time.")
    done = threading.Event()

    def record() -> None:
        for value in range(1, 5001):
            histogram.record(value)

    def scrape() -> None:
        while not done.is_set():
            telemetry.render_metrics()

    recorders = [threading.Thread(target=record) for _ in range(3)]
    scraper = threading.Thread(target=scrape)
    for thread in (*recorders, scraper):
        thread.start()
    for thread in recorders:
        thread.join(30)
    done.set()
    scraper.join(30)
    assert histogram.count == 15_000
