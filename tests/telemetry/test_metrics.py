"""Metrics in the private registry."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from qts import telemetry

_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    return f"qts_test_{next(_numbers)}"


def samples() -> dict[str, float]:
    """Return what a scraper reads, as `name{labels}` -> value."""

    def read() -> Iterator[tuple[str, float]]:
        for family in text_string_to_metric_families(telemetry.render_metrics().decode()):
            for sample in family.samples:
                labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
                yield f"{sample.name}{{{labels}}}", sample.value

    return dict(read())


def test_counted_events_are_rendered(name: str) -> None:
    ticks = telemetry.counter(name, "Ticks seen.", ["venue"])
    ticks.labels("krx").inc(3)
    ticks.labels("upbit").inc()
    assert samples()[f"{name}_total{{venue=krx}}"] == 3
    assert samples()[f"{name}_total{{venue=upbit}}"] == 1


def test_gauge_and_histogram_are_rendered(name: str) -> None:
    telemetry.gauge(f"{name}_depth", "Queue depth.").set(7)
    telemetry.histogram(f"{name}_seconds", "Time.", buckets=[0.1, 1]).observe(0.5)
    read = samples()
    assert read[f"{name}_depth{{}}"] == 7
    assert (read[f"{name}_seconds_bucket{{le=0.1}}"], read[f"{name}_seconds_bucket{{le=1.0}}"]) == (
        0,
        1,
    )


@pytest.mark.parametrize("make", [telemetry.counter, telemetry.gauge, telemetry.histogram])
def test_same_name_returns_the_same_metric(
    name: str, make: Callable[[str, str, list[str]], object]
) -> None:
    assert make(name, "Help.", ["lane"]) is make(name, "Help.", ["lane"])


def test_counter_is_the_same_with_and_without_total(name: str) -> None:
    assert telemetry.counter(name, "Help.") is telemetry.counter(f"{name}_total", "Help.")


def test_same_name_with_other_labels_is_refused(name: str) -> None:
    telemetry.counter(name, "Help.", ["lane"])
    with pytest.raises(ValueError, match=rf"{name} is a counter with labels \('lane',\)"):
        telemetry.counter(name, "Help.", ["venue"])


def test_same_name_of_another_kind_is_refused(name: str) -> None:
    telemetry.gauge(name, "Help.")
    with pytest.raises(ValueError, match="it cannot be a counter"):
        telemetry.counter(name, "Help.")


def test_same_name_with_other_buckets_is_refused(name: str) -> None:
    telemetry.histogram(name, "Help.", buckets=[1, 2])
    with pytest.raises(ValueError, match=r"buckets \(1, 3\)"):
        telemetry.histogram(name, "Help.", buckets=[1, 3])


def test_the_libraries_default_registry_stays_clean(name: str) -> None:
    telemetry.counter(name, "Help.").inc()
    assert name not in prometheus_client.generate_latest().decode()


def test_process_platform_and_gc_are_rendered() -> None:
    read = samples()
    assert any(key.startswith("python_info") for key in read)
    assert any(key.startswith("python_gc_collections_total") for key in read)


@given(st.lists(st.floats(-1, 100) | st.sampled_from([0.1, 1.0, 10.0]), max_size=50))
def test_histogram_exports_the_same_as_the_clients(amounts: list[float]) -> None:
    name, buckets, kind = "qts_test_as_the_client", (0.1, 1.0, 10.0), str(next(_numbers))
    ours = telemetry.histogram(name, "Amounts.", ["kind"], buckets)
    registry = prometheus_client.CollectorRegistry()
    theirs = prometheus_client.Histogram(
        name, "Amounts.", ["kind"], registry=registry, buckets=buckets
    )
    for histogram in (ours, theirs):
        child = histogram.labels(kind)
        for amount in amounts:
            child.observe(amount)
    for suffix, bounds in (
        ("_bucket", ("0.1", "1.0", "10.0", "+Inf")),
        ("_count", ()),
        ("_sum", ()),
    ):
        shown = [
            (labels, value)
            for labels, value in telemetry.metric_samples()[name + suffix]
            if labels["kind"] == kind
        ]
        expected = [{"kind": kind, "le": le} for le in bounds] or [{"kind": kind}]
        assert shown == [
            (each, registry.get_sample_value(name + suffix, each)) for each in expected
        ]
