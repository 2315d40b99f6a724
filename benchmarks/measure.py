"""Interleaved trials: a change of the machine's speed during a run affects every case."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import NamedTuple

from qts import _native

_PING_PONGS = 10_000
_MIN_CLEAN = 2


class Sample(NamedTuple):
    value: float
    disturbed: bool = False  # other programs used the CPUs meanwhile


class Series(NamedTuple):
    """The samples of one case; medians are over the undisturbed ones where there are enough."""

    samples: tuple[Sample, ...]

    @property
    def disturbed(self) -> int:
        return sum(sample.disturbed for sample in self.samples)

    @property
    def remark(self) -> str:
        return f", {self.disturbed} of {len(self.samples)} disturbed" if self.disturbed else ""

    @property
    def values(self) -> list[float]:
        clean = [sample.value for sample in self.samples if not sample.disturbed]
        return clean if len(clean) >= _MIN_CLEAN else [sample.value for sample in self.samples]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)


class Placement(NamedTuple):
    """Round trips of a cache line between the CPUs, in ns, measured before each round."""

    round_trips: tuple[float, ...]

    def __str__(self) -> str:
        low, high = min(self.round_trips), max(self.round_trips)
        middle = statistics.median(self.round_trips)
        return f"round trip of a cache line {middle:.0f} ns ({low:.0f} to {high:.0f})"


Case = Callable[[], Sample]


def interleave(cases: Mapping[str, Case], rounds: int) -> tuple[dict[str, Series], Placement]:
    """Run every case once a round: ours, peer, ours, peer, ..."""
    samples: dict[str, list[Sample]] = {name: [] for name in cases}
    trips = []
    for _ in range(rounds):
        trips.append(_native.ping_pong(_PING_PONGS))
        for name, case in cases.items():
            samples[name].append(case())
    return {name: Series(tuple(got)) for name, got in samples.items()}, Placement(tuple(trips))
