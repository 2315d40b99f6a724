"""The request budget beside aiolimiter and pyrate-limiter: how fast, and how much it lets through.

Speed is measured at the limits of a real key, a request a second: every window has a past and has
room. Time is stepped by hand, so that a day's worth of it is there. The worst window is measured
with a client that takes all it is given for a few seconds, at 20 requests a second.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import tempfile
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.machine import Others
from benchmarks.measure import Case, Sample, Series, interleave
from benchmarks.report import Goal, Row
from qts.domain import SystemClock
from qts.venues import RateLimitConfig, RateLimiter, RequestPriority, UsageLog

PER_SECOND = 20
_REAL = RateLimitConfig(per_second=PER_SECOND, per_minute=1_000, per_day=100_000)
_RATES = ((PER_SECOND, 1_000), (1_000, 60_000), (100_000, 86_400_000))
_PLENTY = 1_000_000
_GRANTS, _QUICK_GRANTS = 50_000, 1_000
_KEPT_GRANTS, _QUICK_KEPT_GRANTS = 2_000, 200
_PEER_PART, _KEPT_PART = 10, 40  # of the grants for pyrate-limiter, which takes longer
_GREEDY_S, _QUICK_GREEDY_S = 6.0, 1.5
_ROUNDS, _QUICK_ROUNDS = 9, 2

Ask = Callable[[], Awaitable[Any]]


class Steps:
    """Half a second on with every look at it; a grant takes two of them."""

    def __init__(self) -> None:
        self._ns = 10**12

    def monotonic_ns(self) -> int:
        self._ns += 500_000_000
        return self._ns

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._ns / 1e9, UTC)

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(f"there is room, and still it would wait for {seconds} s")


class PeerSteps:
    """The same for pyrate-limiter, which looks once."""

    def __init__(self) -> None:
        self._ms = 1_000_000

    def now(self) -> int:
        self._ms += 1_000
        return self._ms


class Greed(NamedTuple):
    """What a limiter of 20 a second gave to a client that takes all it can."""

    most_in_a_second: int
    per_second: float


class Peers(NamedTuple):
    """The peers' modules; None where one is not installed."""

    aiolimiter: Any
    pyrate: Any

    @property
    def missing(self) -> list[str]:
        return [name for name, module in self._asdict().items() if module is None]


def measure(quick: bool) -> tuple[list[Row], list[Row], list[str]]:
    """Rows of speed, rows of what was let through, and what else to know."""
    peers = Peers(_module("aiolimiter"), _module("pyrate_limiter"))
    with tempfile.TemporaryDirectory() as folder:
        cases = _cases(quick, Path(folder), peers)
        found, _ = interleave(cases, _QUICK_ROUNDS if quick else _ROUNDS)
    greed = asyncio.run(_greedy(_QUICK_GREEDY_S if quick else _GREEDY_S, peers))
    notes = [f"no {name} here: it was not measured" for name in peers.missing]
    return _speed_rows(found), _greed_rows(greed), notes


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def _cases(quick: bool, folder: Path, peers: Peers) -> dict[str, Case]:
    grants = _QUICK_GRANTS if quick else _GRANTS
    kept = _QUICK_KEPT_GRANTS if quick else _KEPT_GRANTS
    names = (folder / str(number) for number in itertools.count())

    def keep_ours() -> float:
        clock = Steps()
        budget = RateLimiter(_REAL, clock, UsageLog(next(names), clock))
        try:
            return _taken(budget, kept)
        finally:
            budget.close()

    cases: dict[str, Callable[[], float]] = {
        "try ours": lambda: _taken(RateLimiter(_REAL, Steps()), grants),
        "wait ours": lambda: asyncio.run(_entered(RateLimiter(_REAL, Steps()), grants)),
        "keep ours": keep_ours,
    }
    if peers.aiolimiter is not None:
        limiter = peers.aiolimiter.AsyncLimiter
        cases["wait aiolimiter"] = lambda: asyncio.run(_entered_peer(limiter(_PLENTY, 1), grants))
    if peers.pyrate is not None:
        cases["try pyrate"] = lambda: tried(peers.pyrate, None, grants // _PEER_PART)
        cases["keep pyrate"] = lambda: tried(peers.pyrate, next(names), kept // _KEPT_PART)
    return {name: _watched(case) for name, case in cases.items()}


def _taken(budget: RateLimiter, grants: int) -> float:
    began = time.perf_counter()
    for _ in range(grants):
        if not budget.try_acquire(RequestPriority.BURST):
            raise AssertionError("there is room for every one of them")
        budget.release()
    return grants / (time.perf_counter() - began)


async def _entered(budget: RateLimiter, grants: int) -> float:
    began = time.perf_counter()
    for _ in range(grants):
        async with budget.request(RequestPriority.BURST):
            pass
    return grants / (time.perf_counter() - began)


async def _entered_peer(limiter: Any, grants: int) -> float:
    began = time.perf_counter()
    for _ in range(grants):
        async with limiter:
            pass
    return grants / (time.perf_counter() - began)


def tried(pyrate: Any, path: Path | None, grants: int) -> float:
    rates = [pyrate.Rate(limit, span) for limit, span in _RATES]
    if path is None:
        bucket = pyrate.InMemoryBucket(rates)
    else:
        bucket = pyrate.SQLiteBucket.init_from_file(rates, db_path=str(path))
    bucket.now = PeerSteps().now  # its SQLite bucket asks the system for the time, not its clock
    with pyrate.Limiter(bucket) as limiter:
        began = time.perf_counter()
        for _ in range(grants):
            if not limiter.try_acquire("key", blocking=False):
                raise AssertionError("there is room for every one of them")
        return grants / (time.perf_counter() - began)


def _watched(trial: Callable[[], float]) -> Case:
    def case() -> Sample:
        others = Others()
        value = trial()
        return Sample(value, others.disturb())

    return case


async def _greedy(seconds: float, peers: Peers) -> dict[str, Greed]:
    """All of them at once: they sleep most of the time."""
    limits = RateLimitConfig(per_second=PER_SECOND, per_minute=_PLENTY, per_day=_PLENTY)
    budget = RateLimiter(limits, SystemClock())

    async def ours() -> None:
        async with budget.request(RequestPriority.ORDER):
            pass

    asks: dict[str, Ask] = {"ours": ours}
    if peers.aiolimiter is not None:
        asks["aiolimiter"] = peers.aiolimiter.AsyncLimiter(PER_SECOND, 1).acquire
    limiter = peers.pyrate and peers.pyrate.Limiter(peers.pyrate.Rate(PER_SECOND, 1_000))
    if limiter is not None:
        asks["pyrate-limiter"] = lambda: limiter.try_acquire_async("key")
    try:
        found = await asyncio.gather(*(_take(ask, seconds) for ask in asks.values()))
    finally:
        budget.close()
        if limiter is not None:
            limiter.close()
    return dict(zip(asks, found, strict=True))


async def _take(ask: Ask, seconds: float) -> Greed:
    moments: list[int] = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        await ask()
        moments.append(time.monotonic_ns())
    return Greed(worst_window(moments), len(moments) / seconds)


def worst_window(moments: list[int], span_ns: int = 10**9) -> int:
    """The most moments in any span that has its beginning but not its end; they are in order."""
    return max((n - bisect_right(moments, at - span_ns) + 1 for n, at in enumerate(moments)))


def _speed_rows(found: dict[str, Series]) -> list[Row]:
    below_2_us, faster = (Goal("ours", ">=", 500_000),), (Goal("ratio", ">=", 1),)
    asked = (
        ("budget, without waiting", "try ours", "try pyrate", "pyrate-limiter", below_2_us),
        ("budget, async with", "wait ours", "wait aiolimiter", "aiolimiter, one window", ()),
        ("budget, kept across kill -9", "keep ours", "keep pyrate", "pyrate SQLite", faster),
    )
    return [
        Row(
            name=name,
            metric="median",
            unit="grants/s",
            better="higher",
            ours=found[mine].median,
            peer=found[theirs].median,
            peer_name=peer,
            goals=goals,
            note=f"{found[mine].low:,.0f} to {found[mine].high:,.0f}{found[mine].remark}",
        )
        for name, mine, theirs, peer, goals in asked
        if theirs in found
    ]


def _greed_rows(greed: dict[str, Greed]) -> list[Row]:
    ours = greed.pop("ours")
    return [
        Row(
            name=f"worst second at {PER_SECOND}/s",
            metric="sliding",
            unit="grants",
            better="lower",
            ours=ours.most_in_a_second,
            peer=theirs.most_in_a_second,
            peer_name=peer,
            goals=(Goal("ours", "<=", PER_SECOND),),
            note=f"a greedy client got {ours.per_second:.1f}/s, there {theirs.per_second:.1f}/s",
        )
        for peer, theirs in greed.items()
    ]
