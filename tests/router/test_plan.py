"""Every component is placed once, in pipeline order, and no plan is better balanced."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.domain import RefusedError
from qts.machine import CpuTopology
from qts.router import (
    BurstProfile,
    PlacementPlan,
    Scenario,
    builtin_scenarios,
    load_scenario,
    plan_placement,
)
from qts.router.plan import COMFORTABLE, CORE, components, edges, min_peak_load, partition
from qts.router.scenario import ProcessorSettings, StrategySettings


def machine(usable: int, per_group: int = 64) -> CpuTopology:
    cpus = tuple(range(usable))
    groups = tuple(cpus[at : at + per_group] for at in range(0, usable, per_group))
    cores = tuple((cpu,) for cpu in cpus)
    return CpuTopology(cpus=cpus, usable=usable, groups=groups, cores=cores, nodes=(cpus,))


def slowed(scenario: Scenario, rate: float, burst: BurstProfile | None = None) -> Scenario:
    producers = msgspec.structs.replace(scenario.producers, messages_per_sec=rate, burst=burst)
    return msgspec.structs.replace(scenario, producers=producers)


def placed(made: PlacementPlan) -> list[str]:
    return [name for worker in made.workers for name in worker.components]


def first_rules(msg_type: int, processors: int) -> st.SearchStrategy[dict[str, Any]]:
    some = st.lists(st.integers(0, processors - 1), min_size=1, unique=True)
    rule = {"msg_type": st.just(msg_type), "processors": some}
    priced = rule | {"when": st.just({"price_above": 100}), "otherwise": some}
    return st.fixed_dictionaries(rule) | st.fixed_dictionaries(priced)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    processors, strategies = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    types = draw(st.integers(1, 4))
    values: dict[str, Any] = {
        "producers": {
            "count": draw(st.integers(1, 6)),
            "messages_per_sec": draw(st.integers(1_000, 3_000_000)),
            "distribution": {f"msg_type_{each}": 1 / types for each in range(types)},
        },
        "processors": {
            "count": processors,
            "processing_times_ns": {
                f"msg_type_{each}": draw(st.integers(0, 2000)) for each in range(types)
            },
        },
        "strategies": {"count": strategies, "processing_times_ns": {"strategy_0": 500}},
        "stage1_rules": [draw(first_rules(each, processors)) for each in range(types)],
        "stage2_rules": [
            {
                "msg_type": each,
                "strategy": draw(st.integers(0, strategies - 1)),
                "ordering_required": False,
            }
            for each in range(types)
        ],
    }
    values["stage1_routers"] = draw(st.integers(1, values["producers"]["count"]))
    return msgspec.convert(values, Scenario)


# Laws


@given(scenarios(), st.integers(1, 24), st.sampled_from(["auto", "fused"]), st.booleans())
def test_every_component_appears_once_in_pipeline_order(
    scenario: Scenario, usable: int, layout: Any, python: bool
) -> None:
    made = plan_placement(scenario, machine(usable), layout, python_handlers=python)
    assert placed(made) == [component.name for component in components(scenario)]
    assert 1 <= len(made.workers) <= usable
    assert all(worker.components for worker in made.workers)


@given(scenarios(), st.integers(1, 12))
def test_an_edge_is_a_ring_exactly_where_it_joins_two_workers(
    scenario: Scenario, usable: int
) -> None:
    made = plan_placement(scenario, machine(usable))
    owner = {name: i for i, worker in enumerate(made.workers) for name in worker.components}
    assert all(owner[source] < owner[target] for source, target in made.rings)
    assert all(owner[source] == owner[target] for source, target in made.direct)
    row = components(scenario)
    joined = {(row[a].name, row[b].name) for a, b in edges(row, scenario)}
    assert {*made.rings, *made.direct} == joined
    assert len(made.rings) + len(made.direct) == len(joined)


@given(scenarios())
def test_every_edge_points_down_the_pipeline(scenario: Scenario) -> None:
    assert all(a < b for a, b in edges(components(scenario), scenario))


@given(scenarios())
def test_the_parts_add_up_to_the_cores_needed(scenario: Scenario) -> None:
    total = sum(component.load for component in components(scenario))
    assert total / CORE == pytest.approx(scenario.cores_needed(), rel=1e-6, abs=1e-6)


def every_cut(count: int, workers: int) -> Iterator[list[range]]:
    for cuts in range(min(workers, count)):
        for places in combinations(range(1, count), cuts):
            yield [range(a, b) for a, b in pairwise((0, *places, count))]


def price(parts: Sequence[range], loads: Sequence[int], joined: Sequence[tuple[int, int]]) -> Any:
    weights = [sum(loads[place] for place in part) for part in parts]
    owner = {place: i for i, part in enumerate(parts) for place in part}
    rings = sum(owner[a] != owner[b] for a, b in joined)
    return max(weights), sum(max(0, weight - COMFORTABLE) for weight in weights), rings


@given(st.data())
def test_no_contiguous_cut_is_better(data: st.DataObject) -> None:
    loads = data.draw(
        st.lists(st.integers(0, 12).map(lambda n: n * CORE // 8), min_size=1, max_size=9)
    )
    pairs = list(combinations(range(len(loads)), 2))
    joined = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    workers = data.draw(st.integers(1, 5))
    found = partition(loads, joined, workers)
    best = min(price(parts, loads, joined) for parts in every_cut(len(loads), workers))
    assert price(found, loads, joined) == best
    assert min_peak_load(loads, workers) == best[0]
    assert len(found) <= workers
    assert [place for part in found for place in part] == list(range(len(loads)))


@pytest.mark.parametrize(
    ("joined", "parts"),
    [([(0, 1)], [range(2), range(2, 3)]), ([(1, 2)], [range(1), range(1, 3)])],
)
def test_of_equal_cuts_the_one_with_fewer_rings_is_taken(
    joined: list[tuple[int, int]], parts: list[range]
) -> None:
    assert partition([CORE, 0, CORE], joined, 2) == parts


# Which layout


@pytest.mark.parametrize("name", list(builtin_scenarios()))
def test_the_six_fit_two_cores(name: str) -> None:
    made = plan_placement(load_scenario(name), machine(2))
    assert made.layout == "fused"
    assert [worker.cpu for worker in made.workers] == [0, 1]


def test_auto_takes_threads_only_with_a_core_to_spare() -> None:
    assert plan_placement(load_scenario("baseline"), machine(14)).layout == "threads"
    assert plan_placement(load_scenario("baseline"), machine(13)).layout == "fused"


def test_python_handlers_leave_a_core_to_the_interpreter() -> None:
    busy = load_scenario("imbalanced_processing")
    assert len(plan_placement(busy, machine(2), python_handlers=True).workers) == 1
    assert len(plan_placement(busy, machine(1), python_handlers=True).workers) == 1


def test_little_work_stays_on_one_worker_however_many_cores_there_are() -> None:
    quiet = slowed(load_scenario("baseline"), 100_000)
    for usable in (1, 2, 64):
        made = plan_placement(quiet, machine(usable))
        assert len(made.workers) == 1
        assert made.rings == ()


def test_little_work_with_tall_bursts_is_spread() -> None:
    burst = BurstProfile(period_ms=1000, on_ms=10, factor=50, base_factor=0)
    assert (
        len(plan_placement(slowed(load_scenario("baseline"), 100_000, burst), machine(4)).workers)
        > 1
    )


def test_named_workers_are_used() -> None:
    assert len(plan_placement(load_scenario("baseline"), machine(8), workers=3).workers) == 3


@pytest.mark.parametrize("workers", [0, -1, 14])
def test_workers_out_of_range_are_refused(workers: int) -> None:
    with pytest.raises(RefusedError, match=f"workers is {workers}; expected 1 to 13"):
        plan_placement(load_scenario("baseline"), machine(2), workers=workers)


def test_workers_have_no_meaning_in_layout_threads() -> None:
    with pytest.raises(RefusedError, match="expected layout fused or auto"):
        plan_placement(load_scenario("baseline"), machine(16), "threads", workers=3)


# Spinning and pinning


def test_more_spinning_threads_than_cores_are_refused_with_the_reason() -> None:
    with pytest.raises(
        RefusedError, match=r"spin 13 threads on 2 usable CPUs.*keep those with work off"
    ):
        plan_placement(load_scenario("baseline"), machine(2), "threads")
    with pytest.raises(RefusedError, match="--oversubscribe"):
        plan_placement(load_scenario("baseline"), machine(2), "fused", workers=3)


@pytest.mark.parametrize(
    ("wait", "made_wait"), [(None, "spin"), ("park", "park"), ("yield", "yield")]
)
def test_oversubscribing_by_name_is_allowed(wait: Any, made_wait: str) -> None:
    made = plan_placement(
        load_scenario("baseline"), machine(2), "threads", wait=wait, oversubscribe=True
    )
    assert {worker.wait for worker in made.workers} == {made_wait}
    assert {worker.cpu for worker in made.workers} == {None}
    assert len(made.workers) == 13


def test_threads_that_do_not_spin_may_outnumber_the_cores() -> None:
    made = plan_placement(load_scenario("baseline"), machine(2), "threads", wait="yield")
    assert len(made.workers) == 13
    assert "13 threads (yield) on 2 usable CPUs" in made.notes[0]


def test_a_worker_with_a_core_to_spare_spins_and_one_without_yields() -> None:
    assert {
        worker.wait for worker in plan_placement(load_scenario("baseline"), machine(2)).workers
    } == {"yield"}
    quiet = plan_placement(slowed(load_scenario("baseline"), 1000), machine(2))
    assert {worker.wait for worker in quiet.workers} == {"spin"}


def test_workers_stay_in_one_cache_group_where_they_fit() -> None:
    made = plan_placement(
        load_scenario("imbalanced_processing"), machine(8, per_group=4), workers=4
    )
    cpus = [worker.cpu for worker in made.workers]
    assert cpus == [0, 1, 2, 3]


def test_under_a_quota_nothing_is_pinned_and_the_plan_notes_it() -> None:
    shared = msgspec.structs.replace(machine(8), usable=2, quota=2.5)
    made = plan_placement(load_scenario("baseline"), shared)
    assert [worker.cpu for worker in made.workers] == [None, None]
    assert any("quota of 2.5 CPUs" in note for note in made.notes)


# Overload


def test_work_beyond_the_cores_is_said_with_numbers() -> None:
    made = plan_placement(load_scenario("strategy_bottleneck"), machine(2))
    assert made.overloaded is not None
    assert made.overloaded.startswith(
        "offered work needs 2.2 cores, 2 usable: back-pressure will slow"
    )
    assert made.overloaded.endswith("about 66 %")


def test_one_component_beyond_a_core_is_reported_even_with_cores_to_spare() -> None:
    made = plan_placement(load_scenario("imbalanced_processing"), machine(16))
    assert made.overloaded is not None
    assert "needs 2.0 cores and has one" in made.overloaded
    assert made.overloaded.endswith("about 50 %")


def test_work_within_the_cores_is_not_called_overload() -> None:
    assert plan_placement(load_scenario("baseline"), machine(2)).overloaded is None
    assert plan_placement(load_scenario("hot_type"), machine(2)).overloaded is None


def test_bursts_beyond_the_cores_are_noted() -> None:
    made = plan_placement(load_scenario("burst_pattern"), machine(2))
    assert made.overloaded is None
    assert "bursts need 5.5 cores, 2 usable" in made.notes[0]


def test_a_ring_is_taken_only_where_it_saves_more_than_it_costs() -> None:
    """Without work, a second worker saves half of 19 ns a message and costs 25; of 73 it pays."""
    types = [f"msg_type_{each}" for each in range(4)]
    idle = {
        "processors": ProcessorSettings(count=4, processing_times_ns=dict.fromkeys(types, 0)),
        "strategies": StrategySettings(
            count=3, processing_times_ns={f"strategy_{each}": 0 for each in range(3)}
        ),
    }
    scenario = msgspec.structs.replace(load_scenario("baseline"), **idle)
    assert len(plan_placement(scenario, machine(2), "fused", lean=True).workers) == 1
    assert len(plan_placement(scenario, machine(2), "fused").workers) == 2
    assert len(plan_placement(scenario, machine(2), "fused", workers=2, lean=True).workers) == 2


# Rings and text


def test_ring_capacity_follows_the_layout_unless_the_scenario_sets_it() -> None:
    scenario = load_scenario("baseline")
    assert plan_placement(scenario, machine(2)).ring_capacity == 1024
    assert plan_placement(scenario, machine(14)).ring_capacity == 65_536
    changed = msgspec.structs.replace(scenario, ring_capacity=256)
    assert (
        plan_placement(changed, machine(2)).ring_capacity
        == plan_placement(changed, machine(14)).ring_capacity
        == 256
    )


def test_each_stage1_router_follows_its_producers() -> None:
    split = msgspec.structs.replace(load_scenario("baseline"), stage1_routers=2)
    names = placed(plan_placement(split, machine(2)))[:6]
    assert names == ["producer 0", "producer 1", "stage1 0", "producer 2", "producer 3", "stage1 1"]


def test_the_table_names_every_worker() -> None:
    text = plan_placement(load_scenario("baseline"), machine(2)).render()
    assert text.splitlines() == [
        "plan: fused, 2 workers on 2 usable CPUs; 11 direct calls, 4 edges through rings of"
        " 1,024 slots",
        "  worker   cpu  wait     load  components",
        "       0     0  yield     59%  producers 0-3, stage1 0, processors 0-3",
        "       1     1  yield     50%  stage2, strategies 0-2",
    ]


def test_the_json_of_a_plan_is_plain() -> None:
    made = plan_placement(load_scenario("ordering_stress"), machine(2))
    values = json.loads(json.dumps(made.to_json()))
    assert values["workers"][1]["components"] == ["stage2", "strategy 0"]
    assert values["rings"] == [["processor 0", "stage2"]]
    assert values["direct"] == 10
    assert values["overloaded"] == made.overloaded


def test_the_largest_scenario_is_planned_in_time() -> None:
    scenario = load_scenario("baseline")
    parts = {
        name: msgspec.structs.replace(getattr(scenario, name), count=256)
        for name in ("producers", "processors", "strategies")
    }
    made = plan_placement(msgspec.structs.replace(scenario, **parts), machine(8))
    assert len(placed(made)) == 770
