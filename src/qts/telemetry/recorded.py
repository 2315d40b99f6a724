"""Recorded metrics: values in a small shared file, written by the handlers of a lane.

A lane's handlers may run in a separate process, and `/metrics` is served by the run. Both map
the same file: a table of names and numbers. A record becomes visible by its last write, the length
of its name, so a reader never sees half of one.

    handler ─▶ MetricTable.record ─▶ file ─▶ collector of the registry ─▶ /metrics
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from qts.telemetry.logs import log_every, logger
from qts.telemetry.metrics import registry

MAX_RECORDS = 1024
OTHER = "qts_recorded"  # of names that nothing declares: the name becomes a label
_VALUE, _LENGTH, _NAME = struct.Struct("<d"), struct.Struct("<H"), 10
_RECORD_BYTES = 256
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_PART = re.compile(r"_(?:bucket|sum|count)$")

log = logger("telemetry")


class _Declared:
    """Help text and buckets of a recorded metric; a gauge has no buckets."""

    def __init__(self, text: str, buckets: tuple[float, ...]) -> None:
        self.help = text
        self.buckets = buckets


_declared: dict[str, _Declared] = {}
_attached: dict[Path, MetricTable] = {}
_attach_lock = threading.Lock()


def recorded(name: str, help: str, buckets: tuple[float, ...] = ()) -> str:  # noqa: A002 - Prometheus's word
    """Declare a recorded gauge, or a histogram with these buckets; return its name."""
    _declared[name] = _Declared(help, buckets)
    return name


class MetricTable:
    """Table of recorded metrics; any thread may write, one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), MAX_RECORDS * _RECORD_BYTES)
        self._lock = threading.Lock()
        self._places: dict[str, int] = {}
        self._end = 0

    @classmethod
    @contextmanager
    def create(cls) -> Iterator[MetricTable]:
        """Create an empty table and export it until the block ends."""
        handle, name = tempfile.mkstemp(prefix="qts-metrics-")
        os.ftruncate(handle, MAX_RECORDS * _RECORD_BYTES)
        os.close(handle)
        path = Path(name)
        table = cls.attach(path)
        collector = _TableCollector(table)
        registry.register(collector)
        try:
            yield table
        finally:
            registry.unregister(collector)
            with _attach_lock:
                _attached.pop(path, None)
            path.unlink(missing_ok=True)

    @classmethod
    def attach(cls, path: Path) -> MetricTable:
        """Return the table of a file: one object per process, which orders its writers."""
        with _attach_lock:
            if path not in _attached:
                _attached[path] = cls(path)
            return _attached[path]

    def record(self, name: str, value: float) -> None:
        """Set a gauge, or add an observation to a histogram; drop it when the table is full."""
        declared = _declared.get(name.partition("{")[0])
        with self._lock:
            if declared is None or not declared.buckets:
                self._set(name, value)
                return
            for bound in (*declared.buckets, float("inf")):
                if value <= bound:
                    self._add(f'{name}_bucket{{le="{_bound(bound)}"}}', 1.0)
            self._add(f"{name}_sum", value)
            self._add(f"{name}_count", 1.0)

    def get(self, name: str) -> float | None:
        """Return the value of a name; None when it was never recorded."""
        with self._lock:
            place = self._find(name)
            return None if place is None else self._value(place)

    def values(self) -> dict[str, float]:
        """Return every name with its value, in the order of their first record."""
        with self._lock:
            self._scan()
            return {name: self._value(place) for name, place in self._places.items()}

    def _set(self, name: str, value: float) -> None:
        place = self._find(name)
        if place is None:
            place = self._append(name)
        if place is not None:
            _VALUE.pack_into(self._memory, place, value)

    def _add(self, name: str, amount: float) -> None:
        place = self._find(name)
        self._set(name, amount + (0.0 if place is None else self._value(place)))

    def _value(self, place: int) -> float:
        return float(_VALUE.unpack_from(self._memory, place)[0])

    def _find(self, name: str) -> int | None:
        if name not in self._places:
            self._scan()
        return self._places.get(name)

    def _append(self, name: str) -> int | None:
        text = name.encode("utf-8", "replace")
        if self._end >= MAX_RECORDS or not 0 < len(text) <= _RECORD_BYTES - _NAME:
            if due := log_every(60.0, "recorded metrics"):
                log.warning("metric not recorded; table full or name too long", name=name, **due)
            return None
        place = self._end * _RECORD_BYTES
        self._memory[place + _NAME : place + _NAME + len(text)] = text
        _LENGTH.pack_into(self._memory, place + _VALUE.size, len(text))
        self._places[name] = place
        self._end += 1
        return place

    def _scan(self) -> None:
        """Find the records that another process has appended."""
        while self._end < MAX_RECORDS:
            place = self._end * _RECORD_BYTES
            (length,) = _LENGTH.unpack_from(self._memory, place + _VALUE.size)
            if not length:
                return
            text = self._memory[place + _NAME : place + _NAME + length]
            self._places[text.decode("utf-8", "replace")] = place
            self._end += 1


class _TableCollector(Collector):
    """Exposition of a table."""

    def __init__(self, table: MetricTable) -> None:
        self._table = table

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield from families(self._table.values()).values()


def families(values: Mapping[str, float]) -> dict[str, Metric]:
    """Return the metrics of recorded values, by family name."""
    found: dict[str, Metric] = {}
    for full, value in values.items():
        name, _, rest = full.partition("{")
        labels = dict(_LABEL.findall(rest))
        base = _PART.sub("", name)
        if base in _declared and _declared[base].buckets:
            family = found.setdefault(base, Metric(base, _declared[base].help, "histogram"))
        elif name in _declared:
            family = found.setdefault(name, Metric(name, _declared[name].help, "gauge"))
        else:
            text = "Last value of METRIC_RECORD and PERF_UPDATE events of other names."
            family = found.setdefault(OTHER, Metric(OTHER, text, "gauge"))
            name, labels = OTHER, {"name": full}
        family.add_sample(name, labels, value)
    return found


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else f"{bound:g}"
