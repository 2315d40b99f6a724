"""Rate limiter beside aiolimiter and pyrate-limiter: permits a second, and the worst window.

The speed trials use the limits of a real key at one request a second, so that every window has a
history and free capacity; a fake clock steps through more than a day. The worst window is that of
a client that takes every permit for a few seconds, at 20 a second.
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

from benchmarks.machine import OtherLoad
from benchmarks.measure import Case, Sample, Series, interleave
from benchmarks.report import Goal, Row
from qts.domain import SystemClock
from qts.venues import RateLimitConfig, RateLimiter, RequestPriority, UsageLog

PER_SECOND = 20
_REAL = RateLimitConfig(per_second=PER_SECOND, per_minute=1_000, per_day=100_000)
_RATES = ((PER_SECOND, 1_000), (1_000, 60_000), (100_000, 86_400_000))
_PLENTY = 1_000_000
_GRANTS, _QUICK_GRANTS = 50_000, 1_000
_LOGGED_GRANTS, _QUICK_LOGGED_GRANTS = 2_000, 200
_PEER_PART, _LOGGED_PART = 10, 40  # divisors of the grants for pyrate-limiter, which takes longer
_GREEDY_S, _QUICK_GREEDY_S = 6.0, 1.5
_ROUNDS, _QUICK_ROUNDS = 9, 2

Acquire = Callable[[], Awaitable[Any]]


class SteppedClock:
    """Clock that advances by half a second at each reading; a grant reads it twice."""

    def __init__(self) -> None:
        self._ns = 10**12

    def monotonic_ns(self) -> int:
        self._ns += 500_000_000
        return self._ns

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._ns / 1e9, UTC)

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(f"would wait for {seconds} s despite free capacity")


class PeerSteppedClock:
    """Clock for pyrate-limiter, which reads it once per grant."""

    def __init__(self) -> None:
        self._ms = 1_000_000

    def now(self) -> int:
        self._ms += 1_000
        return self._ms


class Greed(NamedTuple):
    """Permits that a limiter of 20 a second gave to a client that takes all it can."""

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
    """Return rows of speed, rows of the worst second, and notes."""
    peers = Peers(_module("aiolimiter"), _module("pyrate_limiter"))
    with tempfile.TemporaryDirectory() as folder:
        cases = _cases(quick, Path(folder), peers)
        found, _ = interleave(cases, _QUICK_ROUNDS if quick else _ROUNDS)
    greed = asyncio.run(_greedy(_QUICK_GREEDY_S if quick else _GREEDY_S, peers))
    notes = [f"{name} is not installed here and was not measured" for name in peers.missing]
    return _speed_rows(found), _greed_rows(greed), notes


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def _cases(quick: bool, folder: Path, peers: Peers) -> dict[str, Case]:
    grants = _QUICK_GRANTS if quick else _GRANTS
    logged = _QUICK_LOGGED_GRANTS if quick else _LOGGED_GRANTS
    names = (folder / str(number) for number in itertools.count())

    def logged_ours() -> float:
        clock = SteppedClock()
        rate_limiter = RateLimiter(_REAL, clock, UsageLog(next(names), clock))
        try:
            return _try_all(rate_limiter, logged)
        finally:
            rate_limiter.close()

    cases: dict[str, Callable[[], float]] = {
        "try ours": lambda: _try_all(RateLimiter(_REAL, SteppedClock()), grants),
        "wait ours": lambda: asyncio.run(_enter_all(RateLimiter(_REAL, SteppedClock()), grants)),
        "keep ours": logged_ours,
    }
    if peers.aiolimiter is not None:
        limiter = peers.aiolimiter.AsyncLimiter
        cases["wait aiolimiter"] = lambda: asyncio.run(_enter_all_peer(limiter(_PLENTY, 1), grants))
    if peers.pyrate is not None:
        cases["try pyrate"] = lambda: try_pyrate(peers.pyrate, None, grants // _PEER_PART)
        cases["keep pyrate"] = lambda: try_pyrate(peers.pyrate, next(names), logged // _LOGGED_PART)
    return {name: _trial(case) for name, case in cases.items()}


def _try_all(rate_limiter: RateLimiter, grants: int) -> float:
    began = time.perf_counter()
    for _ in range(grants):
        if not rate_limiter.try_acquire(RequestPriority.BURST):
            raise AssertionError("refused despite free capacity")
        rate_limiter.release()
    return grants / (time.perf_counter() - began)


async def _enter_all(rate_limiter: RateLimiter, grants: int) -> float:
    began = time.perf_counter()
    for _ in range(grants):
        async with rate_limiter.request(RequestPriority.BURST):
            pass
    return grants / (time.perf_counter() - began)


async def _enter_all_peer(limiter: Any, grants: int) -> float:
    began = time.perf_counter()
    for _ in range(grants):
        async with limiter:
            pass
    return grants / (time.perf_counter() - began)


def try_pyrate(pyrate: Any, path: Path | None, grants: int) -> float:
    rates = [pyrate.Rate(limit, span) for limit, span in _RATES]
    if path is None:
        bucket = pyrate.InMemoryBucket(rates)
    else:
        bucket = pyrate.SQLiteBucket.init_from_file(rates, db_path=str(path))
    bucket.now = PeerSteppedClock().now  # its SQLite bucket reads the system time, not its clock
    with pyrate.Limiter(bucket) as limiter:
        began = time.perf_counter()
        for _ in range(grants):
            if not limiter.try_acquire("key", blocking=False):
                raise AssertionError("refused despite free capacity")
        return grants / (time.perf_counter() - began)


def _trial(measure: Callable[[], float]) -> Case:
    def case() -> Sample:
        others = OtherLoad()
        value = measure()
        return Sample(value, others.is_disturbing())

    return case


async def _greedy(seconds: float, peers: Peers) -> dict[str, Greed]:
    """Run all limiters at once; they sleep most of the time."""
    limits = RateLimitConfig(per_second=PER_SECOND, per_minute=_PLENTY, per_day=_PLENTY)
    rate_limiter = RateLimiter(limits, SystemClock())

    async def ours() -> None:
        async with rate_limiter.request(RequestPriority.EXIT):
            pass

    clients: dict[str, Acquire] = {"ours": ours}
    if peers.aiolimiter is not None:
        clients["aiolimiter"] = peers.aiolimiter.AsyncLimiter(PER_SECOND, 1).acquire
    limiter = peers.pyrate and peers.pyrate.Limiter(peers.pyrate.Rate(PER_SECOND, 1_000))
    if limiter is not None:
        clients["pyrate-limiter"] = lambda: limiter.try_acquire_async("key")
    try:
        found = await asyncio.gather(*(_take(acquire, seconds) for acquire in clients.values()))
    finally:
        rate_limiter.close()
        if limiter is not None:
            limiter.close()
    return dict(zip(clients, found, strict=True))


async def _take(acquire: Acquire, seconds: float) -> Greed:
    moments: list[int] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await acquire()
        moments.append(time.monotonic_ns())
    return Greed(worst_window(moments), len(moments) / seconds)


def worst_window(moments: list[int], span_ns: int = 10**9) -> int:
    """Return the most of the sorted moments in any half-open span."""
    return max((n - bisect_right(moments, at - span_ns) + 1 for n, at in enumerate(moments)))


def _speed_rows(found: dict[str, Series]) -> list[Row]:
    below_2_us, faster = (Goal("ours", ">=", 500_000),), (Goal("ratio", ">=", 1),)
    compared = (
        ("rate limiter, without waiting", "try ours", "try pyrate", "pyrate-limiter", below_2_us),
        ("rate limiter, async with", "wait ours", "wait aiolimiter", "aiolimiter, one window", ()),
        (
            "rate limiter, kept across kill -9",
            "keep ours",
            "keep pyrate",
            "pyrate-limiter, SQLite",
            faster,
        ),
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
        for name, mine, theirs, peer, goals in compared
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
            note=f"permits a second: ours {ours.per_second:.1f}, peer {theirs.per_second:.1f}",
        )
        for peer, theirs in greed.items()
    ]
