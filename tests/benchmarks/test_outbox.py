"""`qts dev bench outbox`: its rows, its goals and its worker processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import outbox, peers_outbox
from benchmarks.measure import Sample, Series
from benchmarks.outbox_workers import WorkerGroup
from benchmarks.peers_outbox import KINDS, Ours, Raw
from qts.domain import OperationError, Secret
from tests.benchmarks.test_bench_command import FIELDS, run


@pytest.mark.soak
def test_quick_run_writes_rows_pictures_and_missing_peers(tmp_path: Path) -> None:
    file, pictures = tmp_path / "rows.json", tmp_path / "pictures"
    code = run("outbox", "--quick", "--no-goals", "--json", str(file), "--plot", str(pictures))
    assert code == 0
    written: dict[str, Any] = json.loads(file.read_text())
    assert "synchronous_commit on" in written["machine"]["server"]
    rows = written["rows"]
    for row in rows:
        assert set(row) >= FIELDS
        assert row["ours"] > 0
        assert row["peer"] > 0
    pairs = {(row["name"], row["peer_name"]) for row in rows}
    assert pairs >= {
        ("publish one by one", "raw SQL"),
        ("publish in batches", "COPY, both tables"),
        ("drain, 1 worker", "raw SQL"),
        ("drain, 2 workers", "raw SQL, no archive"),
        ("claim under an old snapshot, plain", "its first claims"),
        ("claim under an old snapshot, ordered, 1000 aggregates", "without a horizon"),
    }
    missing = [name for name in KINDS if name not in peers_outbox.installed()]
    for name in missing:
        assert any(note.startswith(f"{name} is not installed") for note in written["notes"])
        assert not any(row["peer_name"] == name for row in rows)
    drawn = sorted(path.name for path in pictures.iterdir())
    assert drawn == [f"outbox-{kind}.svg" for kind in ("drain", "held", "latency", "publish")]


def test_goals_are_those_agreed() -> None:
    """Figures that miss every goal by a little, and figures that meet each exactly."""
    for off, holds in ((0.99, False), (1.0, True)):
        found = {
            "ours": _series(100.0 * off),
            "raw SQL": _series(100.0 / 0.7),
            "PgQueuer": _series(100.0 / 2.5),
            "ours us": _series(20.0 / off),
            "PgQueuer us": _series(50.0),
        }
        drains = [row for row in outbox._drain_rows(1, found) if row.goals]
        assert [row.holds for row in drains] == [holds] * 3
        batches = {"ours": _series(80.0 * off), "raw SQL": _series(100.0)}
        (batched,) = outbox._publish_rows("in batches", batches)
        assert batched.holds is holds
        latencies = {"ours": [0.8 / off] * 98 + [1.0 / off] * 2, "PgQueuer": [1.0] * 100}
        assert [row.holds for row in outbox._latency_rows(latencies)] == [holds] * 2


@pytest.fixture
def group(database_url: Secret) -> Iterator[WorkerGroup]:
    group = WorkerGroup("ours", database_url, 2)
    yield group
    group.close()


@pytest.mark.parametrize("kind", [Ours, Raw])
async def test_two_processes_drain_all_there_is(
    group: WorkerGroup, database_url: Secret, kind: type[Ours] | type[Raw]
) -> None:
    async with kind.open(database_url) as queue:
        await queue.publish_many(queue.batch(200))  # type: ignore[arg-type]
        rate, cpu_us = group.drain(2, 200)
        assert await queue.left() == 0
    assert rate > 0
    assert cpu_us > 0


async def test_every_event_has_its_latency(group: WorkerGroup, database_url: Secret) -> None:
    async with Ours.open(database_url) as queue:
        await queue.publish(1)  # 1 ns after boot, long ago
        (took_ms,) = group.deliver(1, lambda: None)
    assert took_ms > 1


def test_a_drain_that_does_not_end_is_an_error(
    group: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.outbox_workers._TIMEOUT_S", 5.0)
    with pytest.raises(OperationError, match="0 of 1 events after 5 s"):
        group.drain(1, 1)


def _series(value: float) -> Series:
    return Series((Sample(value),))
