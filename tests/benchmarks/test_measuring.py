"""The measuring loops count right, refuse what they cannot do, and notice what goes wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measure import Placement, Sample, Series, interleave
from benchmarks.plot import bars
from benchmarks.report import Goal, Row
from qts import _native
from qts.router import MESSAGE, batch, each

ANYWHERE = (-1, -1)


def row(ours: float, peer: float, *goals: Goal) -> Row:
    return Row(
        name="a < b",
        metric="time",
        unit="ns",
        better="lower",
        ours=ours,
        peer=peer,
        peer_name="peer",
        goals=goals,
    )


@pytest.mark.parametrize("ring", ["ours", "textbook", "cached"])
@pytest.mark.parametrize("way", ["one", "round_trip"])
def test_every_ring_moves_messages_one_at_a_time(ring: str, way: str) -> None:
    ns, _ = _native.bench_ring(ring, way, 64, 1, 2_000, ANYWHERE)
    assert ns > 0


@pytest.mark.parametrize("size", [1, 7, 64, 256])
@pytest.mark.parametrize("way", ["copy", "in_place"])
def test_our_ring_moves_batches(way: str, size: int) -> None:
    """2,001 is no multiple of any of them: the last batch is short."""
    ns, _ = _native.bench_ring("ours", way, 128, size, 2_001, ANYWHERE)
    assert ns > 0


@pytest.mark.parametrize(
    ("ring", "way", "size"),
    [("oak", "one", 1), ("ours", "sideways", 1), ("textbook", "copy", 8), ("ours", "copy", 257)],
)
def test_what_cannot_be_measured_is_refused(ring: str, way: str, size: int) -> None:
    with pytest.raises(ValueError, match=r"ring|way|batch"):
        _native.bench_ring(ring, way, 64, size, 10, ANYWHERE)


def test_work_sees_every_message_of_every_batch() -> None:
    seen: list[int] = []
    _native.bench_work(each(lambda m: seen.append(m.sequence_number)).to_native(), 3, 4, -1)
    assert seen == [0, 1, 2] * 5  # one batch before the clock starts


def test_batch_work_gets_arrays_of_the_size_asked_for() -> None:
    sizes: list[int] = []
    _native.bench_work(batch(lambda array: sizes.append(len(array))).to_native(), 200, 2, -1)
    assert sizes == [200] * 3


@pytest.mark.parametrize("kind", ["ensure", "list"])
def test_the_peers_hand_over_messages(kind: str) -> None:
    given_: list[object] = []
    _native.bench_work((kind, given_.append), 2, 1, -1)
    flat = [m for one in given_ for m in (one if isinstance(one, list) else [one])]
    assert [type(m).__name__ for m in flat] == ["Message"] * 4


@pytest.mark.parametrize("kind", ["each", "ensure", "list"])
def test_work_that_raises_ends_the_trial_with_its_error(kind: str) -> None:
    def fail(_given: object) -> None:
        raise KeyError("no such price")

    work = each(fail).to_native() if kind == "each" else (kind, fail)
    with pytest.raises(RuntimeError, match="no such price"):
        _native.bench_work(work, 8, 5, -1)


@pytest.mark.parametrize("work", [(), ("each",), ("each", print), ("dance", 14, np.zeros(3))])
def test_work_that_no_handler_made_is_refused(work: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match="a handler is"):
        _native.bench_work(work, 8, 5, -1)


def test_messages_are_as_large_as_the_benchmark_says() -> None:
    assert MESSAGE.itemsize == 96


def test_trials_take_turns() -> None:
    order: list[str] = []

    def case(name: str) -> Sample:
        order.append(name)
        return Sample(1.0)

    found, placement = interleave({"a": lambda: case("a"), "b": lambda: case("b")}, 3)
    assert order == ["a", "b"] * 3
    assert [len(found[name].samples) for name in "ab"] == [3, 3]
    assert len(placement.round_trips) == 3


def test_placement_says_how_far_it_moved() -> None:
    shown = str(Placement((120.0, 50.0, 124.0)))
    assert shown == "round trip of a cache line 120 ns (50 to 124)"


@given(st.lists(st.floats(0.1, 1e6), min_size=2), st.lists(st.floats(1e7, 1e9)))
def test_disturbed_samples_never_count_where_two_clean_ones_are(
    clean: list[float], disturbed: list[float]
) -> None:
    samples = [Sample(value) for value in clean] + [Sample(value, True) for value in disturbed]
    series = Series(tuple(samples))
    assert series.disturbed == len(disturbed)
    assert min(clean) == series.low <= series.median <= series.high == max(clean)


def test_with_hardly_a_clean_sample_all_count() -> None:
    assert Series((Sample(1.0), Sample(3.0, True), Sample(5.0, True))).median == 3.0


@pytest.mark.parametrize(
    ("goal", "ours", "holds"),
    [
        (Goal("ratio", ">=", 1.5), 3.0, True),
        (Goal("ratio", ">=", 1.5), 2.9, False),
        (Goal("ratio", "<=", 0.8), 1.6, True),
        (Goal("ratio", "<=", 0.8), 1.7, False),
        (Goal("ours", "<", 5), 4.9, True),
        (Goal("ours", "<", 5), 5.0, False),
    ],
)
def test_a_goal_is_held_to(goal: Goal, ours: float, holds: bool) -> None:
    assert row(ours, 2.0, goal).holds is holds


def test_a_row_holds_only_when_all_its_goals_do() -> None:
    both = row(4.0, 2.0, Goal("ratio", ">=", 2), Goal("ours", ">=", 5))
    assert both.goal == "ratio >= 2 and ours >= 5"
    assert not both.holds


def test_a_row_without_a_goal_holds() -> None:
    assert row(1.0, 2.0).holds
    assert row(1.0, 2.0).to_json()["goal"] is None


def test_bars_are_drawn_for_any_figures_and_names() -> None:
    svg = bars("1 < 2", [row(0.001, 1e6), row(3.0, 0.0)])
    assert svg.count("<rect") == 5
    assert "a &lt; b" in svg
