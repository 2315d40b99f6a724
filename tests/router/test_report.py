"""A report passes only what was delivered whole and in order, and shows what was not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.domain import OperationError
from qts.router import Percentiles, QueueLocation, RouterReport, StallFloor, StrategyCount
from qts.router.report import draw_latency_plot

QUICK = Percentiles(p50=0.12, p90=0.23, p95=0.3, p99=0.45, p99_9=1.2, max=28.4)
GOOD = RouterReport(
    scenario="baseline",
    offered=1000,
    produced=1000,
    delivered=1000,
    undelivered=0,
    violations=0,
    gaps=0,
    seconds=0.5,
    plan={"layout": "fused"},
    latency_us=dict.fromkeys(("total", "stage1", "processing", "stage2"), QUICK),
    stall_floor=StallFloor(
        seconds=0.5,
        over_1us=90,
        over_20us=10,
        longest_us=61.5,
        share_lost=0.002,
        ping_pong_ns=124.0,
    ),
    per_strategy=(StrategyCount(strategy=0, delivered=1000),),
)


def but(**changes: Any) -> RouterReport:
    return msgspec.structs.replace(GOOD, **changes)


# Verdict and JSON


def test_what_was_delivered_whole_and_in_order_passes() -> None:
    assert GOOD.verdict == "PASSED"
    assert GOOD.render().splitlines()[-1] == "PASSED"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"delivered": 999, "undelivered": 1}, "1 undelivered"),
        ({"delivered": 990}, "10 undelivered"),
        ({"delivered": 1001}, "1 delivered twice"),
        ({"violations": 2}, "2 violations"),
        ({"gaps": 3}, "3 gaps"),
        ({"failures": ("strategy 0 raised on message 1,000,003",)}, "1 failures"),
    ],
)
def test_anything_else_fails_and_says_why(changes: dict[str, Any], reason: str) -> None:
    report = but(**changes)
    assert report.verdict == "FAILED"
    assert report.to_json()["verdict"] == "FAILED"
    assert report.render().splitlines()[-1] == f"FAILED: {reason}"


COUNTS = st.integers(0, 3)


@given(COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, st.lists(st.just("x"), max_size=1))
def test_the_verdict_is_exactly_the_rule(
    produced: int, delivered: int, undelivered: int, violations: int, gaps: int, failed: list[str]
) -> None:
    report = but(
        produced=produced,
        delivered=delivered,
        undelivered=undelivered,
        violations=violations,
        gaps=gaps,
        failures=tuple(failed),
    )
    sound = delivered == produced and undelivered == violations == gaps == 0 and not failed
    assert (report.verdict == "PASSED") == sound
    assert (report.render().splitlines()[-1] == "PASSED") == sound


def test_what_may_be_reordered_does_not_fail_a_run() -> None:
    report = but(reordered=7)
    assert report.verdict == "PASSED"
    assert "7 (allowed" in report.render()


def test_scripts_find_every_key_they_rely_on() -> None:
    values = json.loads(json.dumps(GOOD.to_json()))
    assert set(values) == {
        "scenario", "verdict", "offered", "produced", "delivered", "undelivered", "violations",
        "gaps", "reordered", "seconds", "rate_per_s", "plan", "latency_us", "stall_floor",
        "undelivered_at", "failures", "per_strategy", "notes", "streams", "rss_mb",
    }  # fmt: skip
    assert set(values["latency_us"]) == {"stage1", "processing", "stage2", "total"}
    assert set(values["latency_us"]["total"]) == {"p50", "p90", "p95", "p99", "p99_9", "max"}
    assert values["rate_per_s"] == 2000
    assert values["verdict"] == "PASSED"


def test_a_run_of_no_time_has_no_rate() -> None:
    report = but(seconds=0.0, produced=0, delivered=0, offered=0, latency_us={})
    assert report.rate_per_s == 0
    assert "not measured" in report.render()


# Table


def test_the_table_shows_stages_in_order_and_the_stall_floor_beside_them() -> None:
    lines = GOOD.render().splitlines()
    stages = [line.split()[0] for line in lines if line.rstrip().endswith("28.4")]
    assert stages == ["stage1", "processing", "stage2", "total"]
    assert any(
        "stalls 20 times a second for over 20 us, 61.5 us at most, 0.20%" in x for x in lines
    )
    assert any("124 ns" in line for line in lines)


def test_the_table_says_where_undelivered_messages_were() -> None:
    places = (QueueLocation("ring processor 2 -> stage2", 7), QueueLocation("producer 0", 3))
    text = but(delivered=990, undelivered=10, undelivered_at=places).render()
    assert "7 in ring processor 2 -> stage2" in text
    assert "3 in producer 0" in text


def test_notes_and_failures_are_shown() -> None:
    text = but(notes=("slowed to 64 %",), failures=("strategy 1 raised ValueError",)).render()
    assert "note: slowed to 64 %" in text
    assert "failure: strategy 1 raised ValueError" in text


# Plot


def picture(path: Path) -> Xml.Element:
    return Xml.fromstring(path.read_text())  # noqa: S314 - our own file


def test_the_plot_is_a_picture_with_a_line_for_each_stage(tmp_path: Path) -> None:
    GOOD.save_plot(tmp_path / "latency.svg")
    drawn = picture(tmp_path / "latency.svg")
    space = "{http://www.w3.org/2000/svg}"
    assert len(drawn.findall(f"{space}polyline")) == 4
    words = [text.text for text in drawn.findall(f"{space}text")]
    assert {"stage1", "processing", "stage2", "total", "p50", "p99", "max"} <= set(words)
    assert "longest stall of the machine itself: 61.5 us" in words


def test_a_name_with_markup_does_not_break_the_plot(tmp_path: Path) -> None:
    but(scenario='<b>&"').save_plot(tmp_path / "odd.svg")
    assert any('<b>&"' in (text.text or "") for text in picture(tmp_path / "odd.svg").iter())


def test_a_plot_that_cannot_be_written_fails_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(OperationError, match=r"cannot write plot .*: No such file"):
        GOOD.save_plot(tmp_path / "none" / "latency.svg")


CURVES = st.dictionaries(
    st.sampled_from(["stage1", "total", "other"]),
    st.lists(st.floats(0, 1e9), min_size=1, max_size=20).map(
        lambda us: tuple((100 * k / len(us), value) for k, value in enumerate(sorted(us), 1))
    ),
)


@given(CURVES, st.none() | st.floats(0, 1e7))
def test_every_curve_stays_inside_the_picture_and_rises(
    curves: dict[str, tuple[tuple[float, float], ...]], floor: float | None
) -> None:
    drawn = Xml.fromstring(draw_latency_plot("any", curves, floor))  # noqa: S314 - our own text
    for line in drawn.iter("{http://www.w3.org/2000/svg}polyline"):
        points = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
        assert all(0 <= x <= 860 and 0 <= y <= 520 for x, y in points)
        assert points == sorted(points, key=lambda point: (point[0], -point[1]))
