"""Sets of time as sorted, disjoint ranges; a range (start, end] excludes its start."""

from __future__ import annotations

from collections.abc import Iterable

Range = tuple[float, float]


def merge(ranges: Iterable[Range]) -> list[Range]:
    """Return the union of the ranges.

    >>> merge([(5, 7), (1, 3), (3, 4)])
    [(1, 4), (5, 7)]
    """
    merged: list[Range] = []
    for start, end in sorted(each for each in ranges if each[0] < each[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def clip(ranges: Iterable[Range], start: float, end: float) -> list[Range]:
    """Return what lies in (start, end]."""
    return merge((max(low, start), min(high, end)) for low, high in ranges)


def subtract(wanted: Range, covered: Iterable[Range]) -> list[Range]:
    """Return what `covered` lacks of a range.

    >>> subtract((0, 10), [(2, 3), (5, 20)])
    [(0, 2), (3, 5)]
    """
    start, end = wanted
    missing: list[Range] = []
    for low, high in clip(covered, start, end):
        missing.append((start, low))
        start = high
    return merge([*missing, (start, end)])
