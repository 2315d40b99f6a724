"""`qts verify dashboard`: a whole run is measured, and the verdict follows from the figures."""

from __future__ import annotations

from typing import Any

import pytest

from qts.verify import dashboard_load
from qts.verify.dashboard_load import LoadRound, measure_dashboard_load
from qts.verify.page_clients import PageClientCounts


def turn(pages: int, p99_ms: float = 1.0, dashboard_mb: float = 100.0) -> LoadRound:
    return LoadRound(
        pages=pages, count=500, p50_ms=0.1, p99_ms=p99_ms, max_ms=9.0, dashboard_mb=dashboard_mb
    )


READ = PageClientCounts(10, 400, 100)


@pytest.mark.parametrize(
    ("turns", "said", "missed"),
    [
        ([turn(0), turn(10, 1.19), turn(10, 0.5), turn(0)], READ, []),
        ([turn(0), turn(10, 1.2), turn(10, 1.3), turn(0)], READ, ["1.25 times that without"]),
        ([turn(0, 9.0), turn(10, 1.1), turn(10, 50.0), turn(0), turn(0), turn(10)], READ, []),
        ([turn(0), turn(10), turn(10, 1.0, 117.0), turn(0)], READ, ["grown by 17.0 MB"]),
        ([turn(0), turn(10)], PageClientCounts(10, 10, 100), ["the pages read 10 states"]),
    ],
    ids=["held", "slower", "one bad turn", "memory", "deaf pages"],
)
def test_the_verdict_follows_from_the_medians(
    turns: list[LoadRound], said: PageClientCounts, missed: list[str]
) -> None:
    report = dashboard_load._report(10.0, 10, turns, said)
    assert report.verdict == ("FAIL" if missed else "PASS")
    assert [words in text for words, text in zip(missed, report.missed, strict=True)] == [
        True for _ in missed
    ]


async def test_a_run_is_measured_with_and_without_pages(monkeypatch: Any) -> None:
    monkeypatch.setattr(dashboard_load, "TURNS", 4)
    monkeypatch.setattr(dashboard_load, "SETTLE_S", 0.1)
    said: list[str] = []
    report = await measure_dashboard_load(2.0, 3, said.append)
    assert [turn.pages for turn in report.turns] == [0, 3, 3, 0]
    assert [turn.count for turn in report.turns] == [250] * 4  # not one of P0 is lost
    assert report.states_read > 3
    assert report.answers_read > 0
    assert report.dashboard_mb > 10
    assert len(said) == 5
