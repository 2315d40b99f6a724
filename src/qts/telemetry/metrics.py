"""Counters, gauges and histograms in a private registry, and their exposition as text."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.samples import Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # of render_metrics()

M = TypeVar("M", Counter, Gauge, Histogram)

registry = CollectorRegistry()
ProcessCollector(registry=registry)
PlatformCollector(registry=registry)
GCCollector(registry=registry)

_lock = threading.Lock()
_metrics: dict[str, tuple[tuple[object, ...], Counter | Gauge | Histogram]] = {}


class _Histogram(Histogram):
    """Faster histogram: the client takes two locks per value and scans its buckets."""

    def _metric_init(self) -> None:
        super()._metric_init()
        self._guard = threading.Lock()
        self._counts = [0] * len(self._upper_bounds)
        self._amount = 0.0

    def observe(self, amount: float, exemplar: object = None) -> None:  # noqa: ARG002 - signature of the client
        bucket = bisect_left(self._upper_bounds, amount)
        with self._guard:
            self._counts[bucket] += 1
            self._amount += amount

    def _child_samples(self) -> Iterable[Sample]:
        with self._guard:
            counts, amount = list(self._counts), self._amount
        for bucket, count in zip(self._buckets, counts, strict=True):
            bucket.set(count)
        self._sum.set(amount)
        return super()._child_samples()


def counter(name: str, help: str, labels: Sequence[str] = ()) -> Counter:  # noqa: A002 - Prometheus's word
    """Return a counter; its exported name ends in `_total`."""
    return _once(
        Counter,
        name.removesuffix("_total"),
        labels,
        lambda n: Counter(n, help, labels, registry=registry),
    )


def gauge(name: str, help: str, labels: Sequence[str] = ()) -> Gauge:  # noqa: A002
    """Return a gauge."""
    return _once(Gauge, name, labels, lambda n: Gauge(n, help, labels, registry=registry))


def histogram(
    name: str,
    help: str,  # noqa: A002
    labels: Sequence[str] = (),
    buckets: Sequence[float] = Histogram.DEFAULT_BUCKETS,
) -> Histogram:
    """Return a histogram with fixed buckets; for latencies in nanoseconds see `latency`."""
    return _once(
        Histogram,
        name,
        labels,
        lambda n: _Histogram(n, help, labels, registry=registry, buckets=buckets),
        tuple(buckets),
    )


def render_metrics() -> bytes:
    """Return all metrics in the Prometheus text format."""
    return generate_latest(registry)


def metric_samples() -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return labels and value of every sample, by exported name."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def _once(
    kind: type[M],
    name: str,
    labels: Sequence[str],
    make: Callable[[str], M],
    buckets: tuple[float, ...] = (),
) -> M:
    """Return the metric of this name, created on first use.

    Raise ValueError if the name is in use with another type, labels or buckets.
    """
    shape = (kind, tuple(labels), buckets)
    with _lock:
        if name not in _metrics:
            _metrics[name] = (shape, make(name))
        first_shape, metric = _metrics[name]
    if first_shape != shape or not isinstance(metric, kind):
        raise ValueError(
            f"metric {name} is {_describe(first_shape)}; it cannot be {_describe(shape)} as well"
        )
    return metric


def _describe(shape: tuple[object, ...]) -> str:
    kind, labels, buckets = shape
    name = getattr(kind, "__name__", str(kind)).lower()
    return f"a {name} with labels {labels}" + (f" and buckets {buckets}" if buckets else "")
