"""Counters, gauges and histograms in a registry of our own, and their exposition as text."""

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

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # what `render` writes

M = TypeVar("M", Counter, Gauge, Histogram)

registry = CollectorRegistry()
ProcessCollector(registry=registry)
PlatformCollector(registry=registry)
GCCollector(registry=registry)

_lock = threading.Lock()
_known: dict[str, tuple[tuple[object, ...], Counter | Gauge | Histogram]] = {}


class _Histogram(Histogram):
    """Counts by itself: the client takes two locks for each amount and walks over its buckets."""

    def _metric_init(self) -> None:
        super()._metric_init()
        self._guard = threading.Lock()
        self._counts = [0] * len(self._upper_bounds)
        self._amount = 0.0

    def observe(self, amount: float, exemplar: object = None) -> None:  # noqa: ARG002 - the client's
        place = bisect_left(self._upper_bounds, amount)
        with self._guard:
            self._counts[place] += 1
            self._amount += amount

    def _child_samples(self) -> Iterable[Sample]:
        with self._guard:
            counts, amount = list(self._counts), self._amount
        for bucket, count in zip(self._buckets, counts, strict=True):
            bucket.set(count)
        self._sum.set(amount)
        return super()._child_samples()


def counter(name: str, help: str, labels: Sequence[str] = ()) -> Counter:  # noqa: A002 - Prometheus's word
    """A count that only grows; the text form ends in `_total`."""
    return _once(
        Counter,
        name.removesuffix("_total"),
        labels,
        lambda n: Counter(n, help, labels, registry=registry),
    )


def gauge(name: str, help: str, labels: Sequence[str] = ()) -> Gauge:  # noqa: A002
    """A figure that goes up and down."""
    return _once(Gauge, name, labels, lambda n: Gauge(n, help, labels, registry=registry))


def histogram(
    name: str,
    help: str,  # noqa: A002
    labels: Sequence[str] = (),
    buckets: Sequence[float] = Histogram.DEFAULT_BUCKETS,
) -> Histogram:
    """A distribution in fixed buckets; for latencies in nanoseconds see `latency`."""
    return _once(
        Histogram,
        name,
        labels,
        lambda n: _Histogram(n, help, labels, registry=registry, buckets=buckets),
        tuple(buckets),
    )


def render_metrics() -> bytes:
    """Everything measured, in the Prometheus text format."""
    return generate_latest(registry)


def metric_samples() -> dict[str, list[tuple[dict[str, str], float]]]:
    """Every figure of this moment by its exported name, with its labels."""
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
    """The metric of this name, made on first use; another shape under the same name is refused."""
    shape = (kind, tuple(labels), buckets)
    with _lock:
        if name not in _known:
            _known[name] = (shape, make(name))
        known_shape, metric = _known[name]
    if known_shape != shape or not isinstance(metric, kind):
        raise ValueError(
            f"metric {name} is {_words(known_shape)}; it cannot be {_words(shape)} as well"
        )
    return metric


def _words(shape: tuple[object, ...]) -> str:
    kind, labels, buckets = shape
    name = getattr(kind, "__name__", str(kind)).lower()
    return f"a {name} with labels {labels}" + (f" and buckets {buckets}" if buckets else "")
