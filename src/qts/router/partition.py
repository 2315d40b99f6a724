"""Partition of a row of components into contiguous workers: minimal peak load, then few rings.

Loads are integers (billionths of a core), so that equal cuts compare equal. Among the cuts with
the lowest peak load, the one with the least load above `COMFORTABLE` on its workers wins, then the
one with the fewest edges between workers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

CORE = 1_000_000_000
COMFORTABLE = CORE * 7 // 10  # a worker busier than this makes messages wait for each other

Edges = Sequence[tuple[int, int]]
_Cost = tuple[int, int]  # load above comfortable, minus the edges inside workers


def partition(loads: Sequence[int], edges: Edges, workers: int) -> list[range]:
    """Return at most `workers` ranges of positions; every edge must point to a later position."""
    bound = min_peak_load(loads, workers)
    after = _successors(len(loads), edges)
    # best[j]: cost of the first j components in at most k workers, and where the last one begins
    best: dict[int, tuple[_Cost, list[range]]] = {0: ((0, 0), [])}
    for _ in range(min(workers, len(loads))):
        best = _one_more(best, loads, after, bound)
    return best[len(loads)][1]


def min_peak_load(loads: Sequence[int], workers: int) -> int:
    """Return the load of the heaviest worker in the most even contiguous cut."""
    low, high = max(loads), sum(loads)
    while low < high:
        middle = (low + high) // 2
        if _workers_for(loads, middle) <= workers:
            high = middle
        else:
            low = middle + 1
    return low


def _workers_for(loads: Sequence[int], bound: int) -> int:
    count, free = 1, bound
    for load in loads:
        if load > free:
            count, free = count + 1, bound
        free -= load
    return count


def _one_more(
    best: dict[int, tuple[_Cost, list[range]]],
    loads: Sequence[int],
    after: Sequence[Sequence[int]],
    bound: int,
) -> dict[int, tuple[_Cost, list[range]]]:
    longer = dict(best)
    for end in range(1, len(loads) + 1):
        load, inside = 0, 0
        for start in range(end - 1, -1, -1):
            load += loads[start]
            if load > bound:
                break
            inside += bisect_left(after[start], end)
            if start not in best:
                continue
            (above, hidden), ranges = best[start]
            cost = (above + max(0, load - COMFORTABLE), hidden - inside)
            if end not in longer or cost < longer[end][0]:
                longer[end] = (cost, [*ranges, range(start, end)])
    return longer


def _successors(count: int, edges: Edges) -> list[list[int]]:
    after: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        after[source].append(target)
    for targets in after:
        targets.sort()
    return after
