"""Every scenario object is valid; invalid files are refused in one line with the reason."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.domain import RefusedError, ScenarioError
from qts.router import BurstProfile, Pacing, Scenario, builtin_scenarios, load_scenario
from qts.router.scenario import PriceTest

SIX = {
    "baseline",
    "hot_type",
    "burst_pattern",
    "imbalanced_processing",
    "ordering_stress",
    "strategy_bottleneck",
}
GOOD: dict[str, Any] = json.loads(builtin_scenarios()["baseline"].read_text())


def written(tmp_path: Path, values: object) -> Path:
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(values))
    return path


def refusal(path: str | Path) -> str:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    line = str(caught.value)
    assert "\n" not in line
    assert caught.value.exit_code == 2
    return line


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    values = copy.deepcopy(GOOD)
    change(values)
    return values


def at(path: str, value: object) -> Callable[[dict[str, Any]], object]:
    """A change that sets the key at a dotted path."""

    def change(values: Any) -> None:
        *parents, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
        for part in parents:
            values = values[part]
        values[last] = value

    return change


# The six


def test_the_six_scenarios_ship() -> None:
    assert set(builtin_scenarios()) == SIX
    assert {load_scenario(name).scenario for name in SIX} == SIX


@pytest.mark.parametrize(
    ("name", "total", "busy_ns"),
    [
        ("baseline", 40_000_000, 200.0),
        ("hot_type", 60_000_000, 200.0),
        ("burst_pattern", 76_000_000, 200.0),
        ("imbalanced_processing", 60_000_000, 762.5),
        ("ordering_stress", 80_000_000, 200.0),
        ("strategy_bottleneck", 80_000_000, 473.0),
    ],
)
def test_the_six_offer_exactly_what_they_say(name: str, total: int, busy_ns: float) -> None:
    scenario = load_scenario(name)
    assert scenario.total_messages == total
    assert scenario.busy_ns_per_message == pytest.approx(busy_ns)


def test_baseline_keeps_type_3_for_strategy_0() -> None:
    scenario = load_scenario("baseline")
    assert {t: rule.strategy for t, rule in scenario.stage2.items()} == {0: 0, 1: 1, 2: 2, 3: 0}
    assert all(rule.ordering_required for rule in scenario.stage2.values())


def test_burst_pattern_is_2_million_a_second_with_bursts_of_20() -> None:
    scenario = load_scenario("burst_pattern")
    pacing, producers = scenario.pacing, scenario.producers.count
    assert producers * pacing.count(0.2) == 20_000_000 * 0.2
    assert producers * (pacing.count(2.0) - pacing.count(0.2)) == 2_000_000 * 1.8
    assert scenario.peak_rate == 20_000_000


# Refusals: the file


def test_a_misspelt_name_lists_the_six() -> None:
    line = refusal("basline")
    assert "did you mean baseline?" in line
    assert all(name in line for name in SIX)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "none.json")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert "it is a directory" in refusal(tmp_path)


def test_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latin.json"
    path.write_bytes(b'{\n"scenario": "caf\xe9"}')
    assert "not UTF-8 text (line 2)" in refusal(path)


def test_broken_json_is_refused_with_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text('{\n  "scenario": "x",\n  "duration_secs": }\n')
    assert refusal(path).startswith(f"{path}:3:20: not valid JSON")


@pytest.mark.parametrize(
    "text", ["", "[" * 100_000, "[]", "null", "3", '{"seed": ' + "9" * 5000 + "}"]
)
def test_what_is_not_a_scenario_at_all_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(text)
    assert str(path) in refusal(path)


def test_a_duplicate_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.json"
    path.write_text('{"seed": 1, "seed": 2}')
    assert '"seed" appears twice' in refusal(path)


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "bom.json"
    path.write_text("\ufeff" + json.dumps(GOOD), encoding="utf-8")
    assert load_scenario(path) == load_scenario("baseline")


def test_a_shipped_name_wins_over_a_file_called_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "baseline").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert load_scenario("baseline").scenario == "baseline"
    assert "is missing" in refusal("./baseline")


# Refusals: keys and values

TWO = [{"msg_type": t, "processors": [t, (t + 1) % 4]} for t in range(4)]
SPLIT = TWO[1] | {"by": "symbol", "when": {"price_above": 5}, "otherwise": [0]}
BURST = {"period_ms": 2000, "on_ms": 200, "factor": 5, "base_factor": 0.5}
PRODUCERS = "producers.messages_per_sec"


@pytest.mark.parametrize(
    ("change", "key", "expected"),
    [
        (at("stage1_rules", TWO), "stage1_rules[0]", "processors that run at their own speed lose"),
        (at("stage1_rules", GOOD["stage1_rules"][:3]), "stage1_rules", "no rule for msg_type 3"),
        (at("stage2_rules", GOOD["stage2_rules"][1:]), "stage2_rules", "no rule for msg_type 0"),
        (at("stage1_rules.1.processors", [4]), "stage1_rules[1]", "processor 4; expected 0 to 3"),
        (at("stage1_rules.1.processors", [256]), "stage1_rules[1]", "expected an integer from 0"),
        (at("stage1_rules.1.processors", [-1]), "stage1_rules[1].processors[0]", "is -1"),
        (at("stage1_rules.1.processors", []), "stage1_rules[1].processors", "an empty list"),
        (
            at("stage1_rules.1.processors", [1, 1]),
            "stage1_rules[1].processors",
            "each processor once",
        ),
        (at("stage1_rules.1.msg_type", 8), "stage1_rules[1].msg_type", "is 8; expected an integer"),
        (at("stage1_rules.1.msg_type", 0), "stage1_rules[1]", "second rule for msg_type 0"),
        (at("stage2_rules.1.msg_type", 0), "stage2_rules[1]", "second rule for msg_type 0"),
        (at("stage2_rules.1.strategy", 3), "stage2_rules[1].strategy", "is 3; expected 0 to 2"),
        (at("stage1_rules.1.by", "hash"), "stage1_rules[1].by", '"round_robin" or "symbol"'),
        (at("stage1_rules.1.otherwise", [0]), "stage1_rules[1].otherwise", "without a when"),
        (at("stage1_rules.1.when", {}), "stage1_rules[1].when", "price_above or price_below"),
        (at("stage1_rules.1.when", {"price_above": 5}), "stage1_rules[1].otherwise", "is missing"),
        (at("producers.distribution.msg_type_0", 0.26), "distribution", "sum to 1.01; expected 1"),
        (at("producers.distribution.msg_type_0", -0.25), "msg_type_0", "is -0.25"),
        (at("producers.distribution.msg_type_0", math.nan), "msg_type_0", "is NaN"),
        (at("producers.distribution.msg_type_8", 0.0), "msg_type_8", "msg_type_0 to msg_type_7"),
        (
            at("stage1_rules.1", SPLIT),
            "stage1_rules[1].by",
            "beside a when; expected one of the two",
        ),
        (at("stage1_rules.1.when", {"price_above": math.nan}), "when.price_above", "is NaN"),
        (at("producers.distribution", {}), "producers.distribution", "sum to 0"),
        (at(PRODUCERS, 0), PRODUCERS, "is 0; expected a number above 0"),
        (at(PRODUCERS, -5), PRODUCERS, "is -5; expected"),
        (at(PRODUCERS, math.nan), PRODUCERS, "is NaN; expected"),
        (at(PRODUCERS, math.inf), PRODUCERS, "is infinite; expected"),
        (at(PRODUCERS, 1e30), PRODUCERS, "is 1e+30; expected a number above 0 and at most 1,000,0"),
        (at(PRODUCERS, 10**30), PRODUCERS, "is 1e30; expected"),
        (at(PRODUCERS, "fast"), PRODUCERS, 'is "fast"; expected a number'),
        (at(PRODUCERS, True), PRODUCERS, "is true; expected a number"),
        (at(PRODUCERS, 0.01), PRODUCERS, "is not one message"),
        (
            at("producers.count", 300),
            "producers.count",
            "is 300; expected an integer from 1 to 256",
        ),
        (at("producers.count", 0), "producers.count", "is 0; expected an integer from 1 to 256"),
        (at("producers.count", 4.0), "producers.count", "is 4.0; expected an integer"),
        (at("processors.count", 257), "processors.count", "is 257"),
        (at("strategies.count", 0), "strategies.count", "is 0"),
        (at("duration_secs", 0), "duration_secs", "is 0; expected a number above 0"),
        (at("duration_secs", -1), "duration_secs", "is -1"),
        (at("duration_secs", 1e7), "duration_secs", "at most 86,400"),
        (at("duration", 10), "duration", "did you mean duration_secs?"),
        (at("producers.rate", 10), "producers.rate", "known here: count, messages_per_sec"),
        (at("stage2_rules.0.ordering", True), "stage2_rules[0].ordering", "ordering_required?"),
        (at("producers", []), "producers", "expected an object"),
        (at("stage1_rules", {}), "stage1_rules", "expected a list"),
        (at("scenario", ""), "scenario", "expected a text"),
        (at("scenario", "a\nb"), "scenario", "printable"),
        (at("strategies.processing_times_ns.strategy_3", 1), "strategy_3", "names no strategy"),
        (at("strategies.processing_times_ns.strategy_01", 1), "strategy_01", "expected strategy_0"),
        (at("processors.processing_times_ns.msg_type_0", -1), "msg_type_0", "is -1"),
        (at("ring_capacity", 1000), "ring_capacity", "is 1000; expected a power of two"),
        (at("ring_capacity", 1), "ring_capacity", "is 1; expected an integer from 2"),
        (at("stage1_routers", 5), "stage1_routers", "each of the 4 producers"),
        (at("seed", -1), "seed", "is -1"),
        (at("producers.symbols", 0), "producers.symbols", "is 0"),
        (at("producers.burst", BURST | {"on_ms": 2000}), "producers.burst.on_ms", "less than its"),
        (at("producers.burst", BURST | {"factor": -1}), "producers.burst.factor", "is -1"),
        (at("producers.burst", {"on_ms": 1}), "producers.burst.period_ms", "is missing"),
    ],
)
def test_a_bad_scenario_is_refused_in_one_line(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], key: str, expected: str
) -> None:
    path = written(tmp_path, changed(change))
    line = refusal(path)
    assert line.startswith(f"{path}: ")
    assert key in line
    assert expected in line


@pytest.mark.parametrize("key", ["producers", "processors", "strategies", "stage1_rules"])
def test_a_missing_part_is_refused(tmp_path: Path, key: str) -> None:
    path = written(tmp_path, changed(lambda values: values.pop(key)))
    assert f"{key} is missing" in refusal(path)


def test_a_burst_above_the_highest_rate_is_refused(tmp_path: Path) -> None:
    values = changed(at("producers.burst", BURST))
    values["producers"]["messages_per_sec"] = 5e8
    assert "producers.burst.factor makes 2.5e+09" in refusal(written(tmp_path, values))


def test_order_is_refused_to_a_type_split_by_symbol_or_price(tmp_path: Path) -> None:
    split = changed(at("stage1_rules.0", TWO[0] | {"by": "symbol"}))
    assert "ordering_required" in refusal(written(tmp_path, split))
    rule = {"msg_type": 0, "processors": [0], "when": {"price_above": 5}, "otherwise": [1]}
    priced = changed(at("stage1_rules.0", rule))
    assert "ordering_required" in refusal(written(tmp_path, priced))


def test_round_robin_is_taken_where_no_order_is_asked(tmp_path: Path) -> None:
    values = changed(at("stage1_rules", TWO))
    for rule in values["stage2_rules"]:
        rule["ordering_required"] = False
    assert load_scenario(written(tmp_path, values)).stage1[0].processors == (0, 1)


def test_a_type_that_is_never_sent_needs_no_rule(tmp_path: Path) -> None:
    values = changed(at("producers.distribution.msg_type_7", 0))
    assert 7 not in load_scenario(written(tmp_path, values)).shares


def test_a_scenario_made_in_python_is_checked_as_well() -> None:
    with pytest.raises(RefusedError, match="duration_secs is 0"):
        msgspec.structs.replace(load_scenario("baseline"), duration_secs=0)
    with pytest.raises(RefusedError, match=r"ring_capacity is 12"):
        msgspec.structs.replace(load_scenario("baseline"), ring_capacity=12)


def test_every_extension_is_read(tmp_path: Path) -> None:
    values = changed(at("seed", 7)) | {"stage1_routers": 2, "ring_capacity": 4096}
    values["producers"] |= {"burst": BURST, "symbols": 5}
    values["stage1_rules"][0] = {
        "msg_type": 0,
        "processors": [0, 2],
        "by": "symbol",
    }
    values["stage1_rules"][1] |= {"when": {"price_below": 100}, "otherwise": [0]}
    values["stage2_rules"][0] |= {"ordering_required": False, "priority": True}
    values["stage2_rules"][1] |= {"ordering_required": False}
    scenario = load_scenario(written(tmp_path, values))
    assert (scenario.seed, scenario.stage1_routers, scenario.ring_capacity) == (7, 2, 4096)
    assert scenario.producers.symbols == 5
    assert scenario.producers.burst == BurstProfile(
        period_ms=2000, on_ms=200, factor=5, base_factor=0.5
    )
    assert scenario.stage1[0].by == "symbol"
    assert scenario.stage1[1].otherwise == (0,)
    assert scenario.stage1[1].when == PriceTest(price_below=100)
    assert scenario.stage2[0].priority
    assert [scenario.stage1_of(producer) for producer in range(4)] == [0, 0, 1, 1]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
PATHS = [
    "scenario", "duration_secs", "producers", "producers.count", PRODUCERS, "producers.burst",
    "producers.distribution", "producers.distribution.msg_type_0", "processors", "seed",
    "processors.processing_times_ns", "strategies.processing_times_ns", "stage1_rules",
    "stage1_rules.0", "stage1_rules.0.processors", "stage1_rules.0.when", "stage2_rules",
    "stage2_rules.3.strategy", "stage2_rules.0.priority", "ring_capacity", "stage1_routers",
]  # fmt: skip


@given(st.sampled_from(PATHS), JSON_VALUES)
def test_any_value_anywhere_is_taken_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, path: str, value: object
) -> None:
    file = written(tmp_path_factory.getbasetemp(), changed(at(path, value)))
    try:
        scenario = load_scenario(file)
    except ScenarioError as error:
        assert "\n" not in str(error)  # noqa: PT017 - both outcomes are right
        assert len(str(error)) < 500  # noqa: PT017
    else:
        assert scenario.total_messages >= scenario.producers.count


# Counts and times

RATES = st.integers(1, 1_000_000) | st.floats(0.5, 1e6).map(lambda rate: round(rate, 3))
BURSTS = st.none() | st.builds(
    lambda on, off, factor, base: BurstProfile(
        period_ms=on + off, on_ms=on, factor=factor, base_factor=base
    ),
    st.integers(1, 500),
    st.integers(1, 500),
    st.sampled_from([0.5, 1.0, 2.5, 5.0]),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)


@given(RATES, st.integers(1, 100_000))
def test_a_steady_rate_sends_the_whole_part_of_rate_times_time(rate: float, ms: int) -> None:
    exact = Fraction(str(rate)) * Fraction(ms, 1000)
    assert Pacing(rate).count(ms / 1000) == exact.numerator // exact.denominator


@given(RATES, BURSTS, st.integers(2, 20_000))
def test_a_message_is_counted_only_if_it_is_due_before_the_end(
    rate: float, burst: BurstProfile | None, ms: int
) -> None:
    pacing = Pacing(rate, burst)
    count = pacing.count(ms / 1000)
    if count:
        assert pacing.due_ns(count - 1) < ms * 1_000_000
    assert pacing.due_ns(count + 1) >= ms * 1_000_000 - 1


@given(RATES, BURSTS, st.integers(0, 1_000_000))
def test_due_times_never_go_back(rate: float, burst: BurstProfile | None, index: int) -> None:
    pacing = Pacing(rate, burst)
    assert 0 <= pacing.due_ns(index) <= pacing.due_ns(index + 1)


def test_a_tenth_of_a_second_is_a_tenth() -> None:
    assert Pacing(30.0).count(0.1) == 3  # 0.1 * 30 is 3.0000000000000004 in binary
    assert Pacing(0.1).count(10.0) == 1


def test_silence_between_bursts_moves_a_message_to_the_next_burst() -> None:
    pacing = Pacing(1000, BurstProfile(period_ms=100, on_ms=10, factor=1, base_factor=0))
    assert [pacing.due_ns(k) // 1_000_000 for k in (0, 9, 10, 20)] == [0, 9, 100, 200]


def test_cores_needed_counts_work_and_passing_on() -> None:
    assert load_scenario("baseline").cores_needed() == pytest.approx(4e6 * (200 + 73) / 1e9)


def test_a_scenario_reads_back_as_it_was_written(tmp_path: Path) -> None:
    for name in SIX:
        scenario: Scenario = load_scenario(name)
        assert load_scenario(written(tmp_path, msgspec.to_builtins(scenario))) == scenario
