"""Latencies in nanoseconds, recorded by the C++ histogram and exported in seconds."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from qts.telemetry.metrics import registry

QUANTILES = {"0.5": 50.0, "0.95": 95.0, "0.99": 99.0, "0.999": 99.9}  # label -> percent
_SUFFIX = "_seconds"

_lock = threading.Lock()
_families: dict[str, _Family] = {}


class LatencyHistogram:
    """Percentiles within 0.1 % from 1 ns to an hour; any thread may record, without a lock."""

    __slots__ = ("_native", "record", "record_many")

    def __init__(self) -> None:
        # Imported here, so that `qts doctor` runs and reports a missing core.
        from qts._native import Histogram

        self._native = Histogram()
        # Bound once: a wrapping method would double the cost of recording.
        self.record = self._native.record
        self.record_many = self._native.record_many

    def merge(self, other: LatencyHistogram) -> None:
        """Add everything that `other` has recorded."""
        self._native.merge(other._native)

    def percentile(self, percent: float) -> int:
        """Return the nanoseconds that `percent` of the recorded latencies do not exceed."""
        return self._native.percentile(percent)

    @property
    def count(self) -> int:
        return self._native.count

    @property
    def sum(self) -> int:
        return self._native.sum

    @property
    def min(self) -> int:
        return self._native.min

    @property
    def max(self) -> int:
        return self._native.max

    @property
    def mean(self) -> float:
        return self._native.mean


def latency(name: str, help: str, **labels: str) -> LatencyHistogram:  # noqa: A002 - Prometheus's word
    """Return the exported histogram of this name and these labels; created on first use."""
    if not name.endswith(_SUFFIX):
        raise ValueError(f"latency {name} is exported in seconds; its name must end in {_SUFFIX}")
    label_names = tuple(sorted(labels))
    with _lock:
        if name not in _families:
            family = _Family(name, help, label_names)
            registry.register(family)
            _families[name] = family
        family = _families[name]
        if family.label_names != label_names:
            raise ValueError(f"latency {name} has labels {family.label_names}, not {label_names}")
        return family.children.setdefault(
            tuple(labels[each] for each in label_names), LatencyHistogram()
        )


class _Family(Collector):
    """All histograms of one name, exported as a summary and a gauge of the maximum."""

    def __init__(self, name: str, description: str, label_names: tuple[str, ...]) -> None:
        self.name = name
        self.description = description
        self.label_names = label_names
        self.children: dict[tuple[str, ...], LatencyHistogram] = {}

    def describe(self) -> Iterator[Metric]:
        return iter(self._empty())

    def collect(self) -> Iterator[Metric]:
        summary, maximum = self._empty()
        with _lock:
            children = list(self.children.items())
        for values, histogram in children:
            labels = dict(zip(self.label_names, values, strict=True))
            if count := histogram.count:
                for quantile, percent in QUANTILES.items():
                    seconds = histogram.percentile(percent) / 1e9
                    summary.add_sample(self.name, {**labels, "quantile": quantile}, seconds)
                maximum.add_metric(values, histogram.max / 1e9)
            summary.add_metric(values, count, histogram.sum / 1e9)
        return iter((summary, maximum))

    def _empty(self) -> tuple[SummaryMetricFamily, GaugeMetricFamily]:
        maximum = self.name.removesuffix(_SUFFIX) + "_max" + _SUFFIX
        return (
            SummaryMetricFamily(self.name, self.description, labels=self.label_names),
            GaugeMetricFamily(maximum, f"{self.description} Maximum.", labels=self.label_names),
        )
