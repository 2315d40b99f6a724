"""`qts dev bench events`: every peer handles every event, and missing peers are noted."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import events, events_flow, events_traces, peers_events
from benchmarks import events_under_load as load
from benchmarks.measure import Sample, Series
from benchmarks.percentile_plot import percentiles
from qts.domain import OperationError, Tick
from qts.events import EventEngine
from tests.benchmarks.test_bench_command import FIELDS, run
from tests.telemetry.collector import recording


@pytest.fixture
def no_nautilus(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str) -> Any:
        raise ImportError(module)

    monkeypatch.setattr(peers_events, "_nautilus", missing)


@pytest.mark.usefixtures("no_nautilus")
def test_quick_run_writes_rows_and_pictures(tmp_path: Path) -> None:
    file, pictures = tmp_path / "rows.json", tmp_path / "pictures"
    code = run("events", "--quick", "--no-goals", "--json", str(file), "--plot", str(pictures))
    assert code == 0
    written: dict[str, Any] = json.loads(file.read_text())
    rows = written["rows"]
    assert all(set(row) >= FIELDS and row["ours"] > 0 for row in rows)
    names = [row["name"] for row in rows]
    assert names.count("publish one by one") == len(events_flow.PEERS) + 2
    assert sum(name.startswith("publish_many") for name in names) == 3
    assert sum(name.startswith("P0 under load") for name in names) == 6
    assert sum(name.endswith("traces off") for name in names) == 3
    goals = {row["name"]: row["goal"] for row in rows if row["goal"]}
    assert goals["tick to on_tick, traces off"] == "ratio < 1.01"
    assert goals["publish_many, plain handler"] == "ours >= 10"
    assert next(row["goal"] for row in rows if row["name"] == "publish one by one") == "ours >= 3"
    drawn = sorted(path.name for path in pictures.iterdir())
    assert drawn == [f"events-{kind}.svg" for kind in ("cost", "p0", "throughput")]


@pytest.mark.usefixtures("no_nautilus")
def test_a_missing_peer_is_noted_and_its_goal_does_not_hold() -> None:
    notes: list[str] = []
    assert events_flow._peers(notes) == events_flow.PEERS
    assert notes == ["nautilus_trader is not installed here: its rows have no figure"]
    ours = Series((Sample(5.0),) * 2)
    names = ("one by one", "publish_many", "batch", *events_flow.PEERS)
    rows = events._flow_rows(dict.fromkeys(names, ours))
    missing = [row for row in rows if row.peer_name.endswith("not installed")]
    assert [row.holds for row in missing] == [False, False]
    assert all(row.peer == 0.0 for row in missing)


@pytest.mark.parametrize("peer", events_flow.PEERS.values(), ids=events_flow.PEERS)
def test_a_peer_hands_every_event_to_the_handler(
    peer: Callable[[Sequence[Any]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(peers_events, "nothing", seen.append)
    ticks = events_flow._ticks(EventEngine())
    peer(ticks * 3)
    assert [event.event_id for event in seen] == [event.event_id for event in ticks * 3]


def test_only_the_path_as_shipped_has_tracing_code() -> None:
    tick = Tick("005930", 70_000.0, at=1.0)
    found = {}
    for parts in (events_traces.shipped(), events_traces.without_tracing()):
        with recording() as spans:
            path = events_traces.TickPath(parts, 1, calls=True, trace_every=1)
            path.on_tick(tick)
            assert (path.publisher.count, path.runner.strategy.calls) == (1, 1)
        found[parts] = [each.name for each in spans.get_finished_spans()]
    assert list(found.values()) == [["strategy", "tick"], []]


def test_a_tracing_statement_that_has_changed_is_named() -> None:
    with pytest.raises(OperationError, match=r"^qts\.pipeline\.runner has no single 'if tracing'"):
        events_traces._stripped("qts.pipeline.runner", {"if tracing": ""})


@pytest.mark.parametrize("engine", [load.ours, load.threads, load.one_loop])
def test_every_p0_event_is_handled_once_under_load(engine: Callable[[load.LoadProbe], Any]) -> None:
    spans = load.latencies(engine, 10)
    assert len(spans) == 10
    assert min(spans) > 0


def test_a_slow_engine_sends_fewer_and_all_of_them_count() -> None:
    assert 1 <= len(load.latencies(load.threads, 100_000, max_s=0.05)) < 100_000


def test_an_event_that_is_lost_fails_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = events_flow._ticks(EventEngine())
    with pytest.raises(OperationError, match=r"^of 500 events 499 were handled$"):
        events_flow._trial(
            ticks, lambda engine, given: engine.publish_many(given[1:]), peers_events.nothing
        )


def test_the_picture_has_a_line_for_each_engine() -> None:
    spans = {name: np.linspace(0.1, top, 100) for name, top in (("a & b", 1.0), ("c", 30.0))}
    svg = percentiles("P0", spans)
    assert svg.count("<polyline") == 2
    assert "a &amp; b" in svg
    assert "100 ms" in svg
