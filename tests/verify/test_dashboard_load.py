"""`qts dev verify dashboard`: measurement of a run, and its verdict."""

from __future__ import annotations

from typing import Any

import pytest

from qts.verify import dashboard_load
from qts.verify.dashboard_load import LoadRound, measure_dashboard_load
from qts.verify.page_clients import PageClientCounts


def row(
    pages: int, p99_ms: float = 1.0, dashboard_mb: float = 100.0, cpu: float = 0.04
) -> LoadRound:
    return LoadRound(
        pages=pages,
        count=500,
        p50_ms=0.1,
        p99_ms=p99_ms,
        max_ms=9.0,
        dashboard_mb=dashboard_mb,
        dashboard_cpu=cpu,
    )


READ = PageClientCounts(10, 400, 100)


@pytest.mark.parametrize(
    ("rounds", "counts", "missed"),
    [
        ([row(0), row(10, 1.19), row(10, 0.5), row(0)], READ, []),
        (
            [row(0), row(10, 1.2), row(10, 1.3), row(0)],
            READ,
            ["1.25 times that without"],
        ),
        (
            [
                row(0, 9.0),
                row(10, 1.1),
                row(10, 50.0),
                row(0),
                row(0),
                row(10),
            ],
            READ,
            [],
        ),
        (
            [row(0), row(10), row(10, 1.0, 117.0), row(0)],
            READ,
            ["grew by 17.0 MB"],
        ),
        (
            [row(0), row(10)],
            PageClientCounts(10, 10, 100),
            ["the pages read only 10 states"],
        ),
    ],
    ids=["met", "slower", "one bad round", "memory", "few states"],
)
def test_the_verdict_follows_from_the_medians(
    rounds: list[LoadRound], counts: PageClientCounts, missed: list[str]
) -> None:
    report = dashboard_load._report(10.0, 10, rounds, counts)
    assert report.verdict == ("FAIL" if missed else "PASS")
    assert [part in text for part, text in zip(missed, report.missed, strict=True)] == [
        True for _ in missed
    ]


@pytest.mark.parametrize(("pages", "missed"), [(1, ["one page took 6.0% of a core"]), (10, [])])
def test_the_cpu_of_one_page_has_a_limit(pages: int, missed: list[str]) -> None:
    rounds = [row(0), row(pages, cpu=0.01), row(pages, cpu=0.06), row(pages, cpu=0.09)]
    report = dashboard_load._report(10.0, pages, rounds, READ)
    assert report.dashboard_cpu == 0.06
    assert [text.partition(";")[0] for text in report.missed] == missed


async def test_a_run_is_measured_with_and_without_pages(monkeypatch: Any) -> None:
    monkeypatch.setattr(dashboard_load, "ROUNDS", 4)
    monkeypatch.setattr(dashboard_load, "SETTLE_S", 0.1)
    lines: list[str] = []
    report = await measure_dashboard_load(2.0, 3, lines.append)
    assert [each.pages for each in report.turns] == [0, 3, 3, 0]
    assert [each.count for each in report.turns] == [250] * 4  # no P0 event is lost
    assert report.states_read > 3
    assert report.answers_read > 0
    assert report.dashboard_mb > 10
    assert len(lines) == 5
