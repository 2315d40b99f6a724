"""`qts data observe` and `qts dev simulate kis` as processes, checked by the counts of the latter.

The long ones run with `-m soak`.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from qts.feed import PatternRecord
from tests.feed.user import (
    ObserveProcess,
    Simulated,
    files_containing,
    observing,
    settings_for,
    simulated,
)
from tests.venues.kis import KEY

REAL = ("--limits", "18/1000/100000")
SPEED = int(os.environ.get("QTS_SOAK_SPEED", "200"))


def _within(venue: Simulated) -> None:
    """No window was ever above its limit, by the simulator's own count."""
    seen = venue.counts
    assert seen["requests"] > 0
    for window, limit in seen["limits"].items():
        assert seen["worst"][window] <= limit, seen


def _polls(records: list[PatternRecord], symbol: str, mode: str) -> list[datetime]:
    return [
        record.snapshot.meta.time
        for record in records
        if record.snapshot.context.symbol == symbol
        and record.snapshot.observation.state.polling_mode == mode
    ]


def _beat(moments: list[float]) -> list[float]:
    """Return the gaps between polls of a burst, without those of the scan."""
    gaps, at = [], moments[0]
    while later := [moment for moment in moments if moment > at + 0.5]:
        following = min(later, key=lambda moment: abs(moment - at - 1.0))
        gaps.append(following - at)
        at = following
    return gaps


def _wait_second_scan(process: ObserveProcess) -> None:
    process.until(lambda state: state.poller.scans >= 2, 90)


def test_a_few_scans_are_within_the_limits(tmp_path: Path) -> None:
    with simulated(*REAL, "--symbols", "120") as venue:
        settings = settings_for(venue, tmp_path, feed__interval_s=1.0)
        with observing(tmp_path / "home", settings) as process:
            process.until(lambda state: state.poller.scans >= 3, 60)
            assert process.stop().code == 0
        assert {r.snapshot.context.symbol for r in process.records} == set(venue.symbols)
        assert venue.counts["refused"] == 0
        _within(venue)
    assert files_containing(tmp_path / "home", KEY.app_secret) == []
    assert files_containing(tmp_path / "home", KEY.app_key) == []


def test_a_day_in_simulated_time_begins_where_the_simulator_is(tmp_path: Path) -> None:
    """Nine o'clock is three seconds away at x20; before it nothing is polled."""
    start = ("--start", "2026-11-16T08:58:30", "--speed", "20", "--limits-clock", "market")
    with simulated(*REAL, *start, "--symbols", "60") as venue:
        settings = settings_for(venue, tmp_path, feed__always_open="false")
        with observing(tmp_path / "home", settings, "--simulated-time", "--for", "60s") as process:
            process.until(lambda state: state.poller.scans >= 1, 60)
            assert process.stop().code == 0
        assert (
            min(r.snapshot.meta.time for r in process.records).isoformat() >= "2026-11-16T00:00:00"
        )
        _within(venue)


def test_killed_processes_together_stay_within_every_limit(tmp_path: Path) -> None:
    _kill_and_check(tmp_path, kills=2)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_ten_killed_processes_together_stay_within_every_limit(tmp_path: Path) -> None:
    _kill_and_check(tmp_path, kills=10)


def _kill_and_check(folder: Path, kills: int) -> None:
    """Each process scans as fast as allowed, and is killed at a random time."""
    rng = random.Random(11)  # noqa: S311 - the same every time
    with simulated(*REAL, "--symbols", "300") as venue:
        settings = settings_for(venue, folder, feed__interval_s=0.5)
        for _ in range(kills):
            with observing(folder / "home", settings) as process:
                process.until(lambda state: state.poller.polls >= 5, 60)
                time.sleep(rng.uniform(0.0, 1.0))  # a random part of a second
                process.kill()
        with observing(folder / "home", settings, "--for", "3s") as process:
            outcome = process.wait()
        assert outcome.code == 0
        assert venue.counts["refused"] == 0
        assert venue.counts["requests"] >= 5 * kills
        assert outcome.states[-1].budget.used_day >= venue.counts["requests"]  # never too few
        _within(venue)


@pytest.mark.soak
@pytest.mark.timeout(200)
def test_2500_symbols_every_30_seconds_cost_little(tmp_path: Path) -> None:
    with simulated(*REAL) as venue:
        with observing(
            tmp_path / "home", settings_for(venue, tmp_path), "--for", "120s"
        ) as process:
            outcome = process.wait()
        last = outcome.states[-1]
        assert outcome.code == 0
        assert last.poller.scans >= 4
        assert max(state.poller.last_scan_s for state in outcome.states) <= 30.5
        assert (venue.counts["refused"], last.poller.failed, last.lost) == (0, 0, 0)
        _within(venue)
        seen = Counter(r.snapshot.context.symbol for r in process.records)
        assert set(seen) == set(venue.symbols)
        assert min(seen.values()) >= 4
        assert outcome.cpu < 0.10
        assert outcome.rss_mb < 120


@pytest.mark.soak
@pytest.mark.timeout(200)
def test_a_paper_key_says_what_it_can_and_holds_it(tmp_path: Path) -> None:
    with simulated("--paper", "--symbols", "50") as venue:
        settings = settings_for(venue, tmp_path, venues__kis__paper="true")
        with observing(tmp_path / "home", settings, "--for", "125s") as process:
            outcome = process.wait()
        last = outcome.states[-1]
        assert last.plan.startswith("55.0 s scan, 50 calls, 0.9/s")
        assert last.poller.scans >= 2
        assert abs(last.poller.last_scan_s - 55.0) <= 0.6
        assert venue.counts["refused"] == 0
        assert venue.counts["worst"]["second"] == 1
        _within(venue)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_whole_day_of_single_quotes_at_x200_uses_its_quota_and_holds_its_plan(
    tmp_path: Path,
) -> None:
    """830 requests a second and their replies within milliseconds: for a machine that is idle."""
    limits = ("--limits", "20/1000/100000", "--limits-clock", "market", "--speed", str(SPEED))
    with simulated(*limits) as venue:
        single = {
            "venues__kis__limits__per_second": 20,
            "feed__multi_quotes": "false",
            "feed__always_open": "false",
        }
        settings = settings_for(venue, tmp_path, **single)
        with observing(tmp_path / "home", settings, "--simulated-time") as process:
            process.until(lambda state: state.poller.open, 60)
            process.until(lambda state: not state.poller.open, 23_400 / SPEED + 60)
            outcome = process.stop()
        last = outcome.states[-1]
        assert (last.poller.refused, venue.counts["refused"]) == (0, 0)
        assert 95_000 <= venue.counts["requests"] <= 100_000
        _within(venue)
        assert last.poller.scans >= 30  # 23,400 s in scans of 670 s: 34


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_jump_is_seen_in_one_scan_and_polled_every_second_to_the_end_of_its_burst(
    tmp_path: Path,
) -> None:
    with simulated(*REAL) as venue:
        jumper = venue.symbols[700]  # the first ones are halted at 3 %
        with observing(tmp_path / "home", settings_for(venue, tmp_path)) as process:
            _wait_second_scan(process)
            planted = time.time()
            venue.surge(jumper, 3.5)
            process.until(lambda state: jumper in state.poller.bursts, 35)
            began = time.monotonic()
            up = itertools.cycle((-2.0, 2.0))  # so that only time ends it
            while time.monotonic() < began + 280:
                time.sleep(20)  # how often it moves
                venue.surge(jumper, next(up))
            process.until(lambda state: jumper not in state.poller.bursts, 60)
            process.stop()
        polls = _polls(process.records, jumper, "burst")
        assert polls[0].timestamp() - planted <= 30.0 + 2.0
        off = sorted(abs(gap - 1.0) for gap in _beat([poll.timestamp() for poll in polls]))
        assert off[len(off) * 95 // 100] <= 0.1
        assert 290 <= (polls[-1] - polls[0]).total_seconds() <= 301
        other = _polls(process.records, venue.symbols[1500], "normal")
        assert max((b - a).total_seconds() for a, b in itertools.pairwise(other)) <= 32.0
        assert venue.counts["refused"] == 0
        _within(venue)


@pytest.mark.soak
@pytest.mark.timeout(200)
def test_of_fifteen_jumps_at_once_the_ten_largest_are_polled(tmp_path: Path) -> None:
    with simulated(*REAL) as venue:
        sizes = {symbol: 3.4 + 0.4 * n for n, symbol in enumerate(venue.symbols[700:2200:100])}
        with observing(tmp_path / "home", settings_for(venue, tmp_path)) as process:
            _wait_second_scan(process)
            venue.ask("clock", {"paused": True})  # all in the same second
            for symbol, percent in sizes.items():
                venue.surge(symbol, percent, over_s=2)
            venue.ask("clock", {"paused": False})
            largest = set(sorted(sizes, key=lambda symbol: sizes[symbol])[-10:])
            process.until(lambda state: set(state.poller.bursts) == largest, 65)
            assert process.stop().code == 0
        _within(venue)


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_refusals_by_chance_lose_no_poll_and_the_rate_comes_back(tmp_path: Path) -> None:
    with simulated(*REAL) as venue:
        venue.ask("faults", {"kind": "limit", "path": "/uapi/", "rng": 0.01})
        settings = settings_for(venue, tmp_path, feed__interval_s=25.0)
        with observing(tmp_path / "home", settings) as process:
            process.until(lambda state: state.poller.refused >= 2, 150)
            process.until(lambda state: state.poller.scans >= 4, 120)
            (fault,) = json.loads(venue.ask("faults"))
            venue.ask("faults", method="DELETE")
            process.until(lambda state: state.budget.rate_per_s == 18, 150)
            states = process.states
            process.stop()
        rates = [state.budget.rate_per_s for state in states]
        assert min(rates) <= 9
        assert states[-1].poller.refused == fault["struck"]
        seen = Counter(r.snapshot.context.symbol for r in process.records)
        assert set(seen) == set(venue.symbols)
        assert min(seen.values()) >= states[-1].poller.scans
        _within(venue)
