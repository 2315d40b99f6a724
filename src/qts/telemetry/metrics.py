"""Metrics in a private registry, latencies among them, and `/metrics` that serves them as text.

Latencies are nanoseconds, recorded by the C++ histogram and exported in seconds. `/metrics` is on
the loopback interface, served by a dedicated thread: scrapes do not block an event loop. Free disk
and memory of the host are read on each scrape.
"""

from __future__ import annotations

import shutil
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
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
from prometheus_client.core import GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # of render_metrics()
QUANTILES = {"0.5": 50.0, "0.95": 95.0, "0.99": 99.0, "0.999": 99.9}  # label -> percent
_SUFFIX = "_seconds"  # of a latency's name
HOST = "127.0.0.1"
PATH = "/metrics"
_REQUEST_TIMEOUT_S = 10.0
_MEMORY = Path("/proc/meminfo")

M = TypeVar("M", Counter, Gauge, Histogram)

registry = CollectorRegistry()
ProcessCollector(registry=registry)
PlatformCollector(registry=registry)
GCCollector(registry=registry)

_lock = threading.Lock()
_metrics: dict[str, tuple[tuple[object, ...], Counter | Gauge | Histogram]] = {}
_families_lock = threading.Lock()
_families: dict[str, _Family] = {}  # of latencies


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
    with _families_lock:
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
        with _families_lock:
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


class _Handler(BaseHTTPRequestHandler):
    timeout = _REQUEST_TIMEOUT_S
    server_version = "qts"
    sys_version = ""

    def do_GET(self) -> None:
        found = self.path.partition("?")[0] == PATH
        body = render_metrics() if found else b"not found; only /metrics is served\n"
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", CONTENT_TYPE if found else "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - signature of the base class
        """Suppress the access log."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect during a response."""


@contextmanager
def serve_metrics(port: int) -> Iterator[int]:
    """Serve during the block; yield the port (0: any free one). Raise OSError if it is in use."""
    with _Server((HOST, port), _Handler) as server:
        thread = threading.Thread(
            target=server.serve_forever, args=(0.1,), name="qts-metrics", daemon=True
        )
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


def export_host_metrics(home: Path) -> None:
    """Export the free share of the disk that contains `home`, and of the memory."""
    gauge(
        "qts_disk_free_ratio", "Free share of the disk of the home directory, 0 to 1."
    ).set_function(lambda: _disk(home))
    gauge("qts_memory_free_ratio", "Available share of the memory, 0 to 1.").set_function(
        memory_free
    )


def memory_free(meminfo: Path = _MEMORY) -> float:
    """Return the available share of the memory; 1 where the system does not report it."""
    try:
        rows = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        available, total = (int(rows[name].split()[0]) for name in ("MemAvailable", "MemTotal"))
    except (OSError, KeyError, ValueError, IndexError):
        return 1.0
    return available / total if total else 1.0


def _disk(home: Path) -> float:
    try:
        usage = shutil.disk_usage(home)
    except OSError:
        return 0.0
    return usage.free / usage.total
