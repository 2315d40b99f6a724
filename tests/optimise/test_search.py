"""Ranges, samplers and folds."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Annotated, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from qts.domain import RefusedError
from qts.optimise import SearchSpace, make_folds, trial_count
from qts.optimise.search import Method, make_sampler
from qts.strategies import Strategy


class Params(msgspec.Struct, frozen=True):
    fast: Annotated[int, Meta(ge=1)] = 3
    margin: float = 0.0
    mode: str = "a"
    short: bool = False


class Example(Strategy[Params], key="example"):
    pass


def space(*lines: str) -> SearchSpace:
    return SearchSpace.parse(Example, lines)


def test_ranges_are_read_as_the_strategy_declares_its_parameters() -> None:
    found = space("fast=2..8:3", "margin=0..0.3:0.1", "mode=a,b", "short=true")
    values = [list(each.values or ()) for each in found.ranges]
    assert values == [[2, 5, 8], [0.0, 0.1, 0.2, 0.3], ["a", "b"], [True]]
    assert found.size == 3 * 4 * 2
    assert [each.name for each in found.varied] == ["fast", "margin", "mode"]
    assert str(found.ranges[0]) == "fast=2..8:3"
    assert space("fast=2..20", "margin=0..1").size is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("fst=2..20", "'fst' is unknown; expected one of fast, margin, mode, short; did you mean"),
        ("fast=20..2", "the range is empty"),
        ("fast=0..20", "'0': Expected `int` >= 1"),
        ("fast=2..x", "'x': Expected `int`"),
        ("fast=2..9:0", "step '0': expected a whole number above 0"),
        ("margin=0..inf", "expected finite numbers"),
        ("mode=a..b", "mode is no number"),
        ("fast", "expected NAME=LOW..HIGH"),
        ("fast=5", "no parameter has several values"),
        ("fast=1..9000000", "more than 1,000,000 values"),
    ],
)
def test_a_wrong_range_is_refused(line: str, message: str) -> None:
    with pytest.raises(RefusedError, match="param") as error:
        space(line)
    assert message in str(error.value)


def test_a_grid_must_be_countable_and_fit_the_trials() -> None:
    assert trial_count("grid", space("fast=1..6"), None) == 6
    assert trial_count("random", space("fast=1..6"), 100) == 6
    with pytest.raises(RefusedError, match="has no step"):
        trial_count("grid", space("margin=0..1"), 10)
    with pytest.raises(RefusedError, match="6 combinations, and the limit is 5 trials"):
        trial_count("grid", space("fast=1..6"), 5)


def proposals(method: Method, seed: int, count: int, window: int = 4) -> list[dict[str, Any]]:
    """Return what a sampler proposes where small `fast` is good and `mode` b has no value."""
    sampler = make_sampler(method, space("fast=1..50", "margin=0..1", "mode=a,b"), seed)
    waiting: deque[dict[str, Any]] = deque()
    found = []
    for _ in range(count):
        if len(waiting) == window:
            params = waiting.popleft()
            sampler.tell(None if params["mode"] == "b" else -float(params["fast"]))
        found.append(sampler.ask())
        waiting.append(found[-1])
    return found


@pytest.mark.parametrize("method", ["random", "bayes"])
def test_a_seed_decides_the_proposals_and_more_trials_continue_them(method: Method) -> None:
    first = proposals(method, 7, 30)
    assert proposals(method, 7, 20) == first[:20]
    assert proposals(method, 8, 30) != first


def test_bayes_tries_more_where_trials_were_good() -> None:
    found = proposals("bayes", 7, 60)
    early, late = (np.mean([each["fast"] for each in part]) for part in (found[:10], found[40:]))
    assert late < early / 2


def test_a_grid_has_every_combination_once() -> None:
    sampler = make_sampler("grid", space("fast=1..3", "mode=a,b"), 0)
    cells = [tuple(sampler.ask().values()) for _ in range(6)]
    assert sorted(cells) == [(n, mode) for n in (1, 2, 3) for mode in "ab"]


@given(
    st.lists(st.integers(1, 10**9), min_size=1, max_size=300, unique=True),
    st.integers(1, 20),
    st.floats(0.01, 0.9),
)
def test_folds_never_overlap_and_end_with_the_data(
    seconds: list[int], count: int, share: float
) -> None:
    times = np.array(sorted(seconds), np.float64)
    try:
        folds = make_folds(times, count, share)
    except RefusedError:
        width = len(times) / (1 - share + count * share)  # bars of a fold
        assert width * min(share, 1 - share) < 2.001
        return
    assert len(folds) == count
    assert folds[-1].end == times[-1]
    assert times[0] > folds[0].start
    for fold in folds:
        inside = times[(times > fold.start) & (times <= fold.split)]
        outside = times[(times > fold.split) & (times <= fold.end)]
        assert len(inside) >= 2
        assert len(outside) >= 2
        assert inside.max() < outside.min()
    for fold, following in pairwise(folds):
        assert fold.end == following.split  # no gap and no overlap out of sample
        assert fold.start < following.start
