"""What open pages cost what trades: lane P0 of one run, with and without them, in turns.

    without   the dashboard's process is stopped where it stands
    with      ten pages are open and read, and one client more never does

The run is a whole one, on a simulated market and a home that is thrown away. Each turn has its own
p99; the medians of the turns are compared, because a shared machine spoils single turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from qts.app import DashboardProcess, TradingSystem
from qts.config import Config
from qts.dashboard import Role, Tokens
from qts.domain import OperationError, SystemClock
from qts.embedded import Home
from qts.events import EventEngine
from qts.events import payloads as p
from qts.verify.page_clients import PageClientCounts, PageClientSpec
from qts.verify.sandbox import open_sandbox

RATE = 500  # events of P0 a second
SETTLE_S = 1.0  # after pages came or went
TURNS = 16
RATIO, GROWTH_MB = 1.2, 16.0


class LoadRound(msgspec.Struct, frozen=True, kw_only=True):
    pages: int
    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    dashboard_mb: float


class DashboardLoadReport(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Literal["PASS", "FAIL"]
    seconds: float
    pages: int
    without_p99_ms: float  # medians of the turns
    with_p99_ms: float
    ratio: float
    dashboard_mb: float  # resident, at the end of the last turn with pages
    grown_mb: float  # since the first one
    states_read: int  # by the pages, of what the run tells four times a second
    answers_read: int
    turns: list[LoadRound]
    missed: list[str]


async def measure_dashboard_load(
    seconds: float, pages: int, say: Callable[[str], None]
) -> DashboardLoadReport:
    with tempfile.TemporaryDirectory(prefix="qts-view-") as place:
        home = Home.at(Path(place) / "home")
        async with _run(home) as (trading, view):
            token = Tokens.of(home.path).token(Role.READ).reveal()
            with _Visitors(PageClientSpec(view.address, token, pages)) as visitors:
                say(f"{TURNS} turns of {seconds / TURNS:.1f} s, {pages} pages in every other one")
                turns = [
                    turn
                    async for turn in _turns(trading.engine, view, visitors, seconds / TURNS, say)
                ]
                return _report(seconds, pages, turns, visitors.said)


@contextlib.asynccontextmanager
async def _run(home: Home) -> AsyncIterator[tuple[TradingSystem, DashboardProcess]]:
    settings = {"simulator": {"symbols": 300, "scan_s": 2.0}, "dashboard": {"port": 0}}
    config = msgspec.convert(settings, Config)
    clock = SystemClock()
    async with (
        open_sandbox(home, config, clock) as trading,
        DashboardProcess(trading.config, home, clock) as view,
    ):
        if view.pid is None:
            raise OperationError("the dashboard did not start")
        yield trading, view


async def _turns(
    engine: EventEngine,
    view: DashboardProcess,
    visitors: _Visitors,
    turn_s: float,
    say: Callable[[str], None],
) -> AsyncIterator[LoadRound]:
    """In the order - + + - - + + -, so that neither kind is always the later one."""
    for number in range(TURNS):
        is_open = number % 4 in (1, 2)
        await asyncio.to_thread(visitors.show if is_open else visitors.hide)
        with contextlib.nullcontext() if is_open else _stopped(view):
            await asyncio.sleep(SETTLE_S)
            spans = await asyncio.to_thread(_measured, engine, turn_s)
        p50, p99, most = (round(float(each), 3) for each in np.percentile(spans, (50, 99, 100)))
        turn = LoadRound(
            pages=visitors.said.pages,
            count=len(spans),
            p50_ms=p50,
            p99_ms=p99,
            max_ms=most,
            dashboard_mb=round(_resident_mb(view.pid), 1),
        )
        say(f"{turn.pages:3} pages   P0 p50 {p50:.2f}  p99 {p99:.2f}  max {most:.2f} ms")
        yield turn


def _measured(engine: EventEngine, seconds: float) -> list[float]:
    """Publishes events of P0 at a steady pace; milliseconds until each was handled."""
    spans: list[float] = []
    waiting: list[Future[None]] = []

    def noted(began_ns: int) -> Callable[[Future[None]], None]:
        return lambda _: spans.append((time.perf_counter_ns() - began_ns) / 1e6)

    due = time.monotonic()
    for number in range(int(seconds * RATE)):
        due += 1 / RATE
        time.sleep(max(0.0, due - time.monotonic()))
        payload = p.BrokerDisconnect(broker="drill", reason=f"a drill, {number // RATE}")
        event = engine.new_event("BROKER_DISCONNECT", payload, "drill")
        began_ns = time.perf_counter_ns()
        future = engine.publish_for_ack(event)
        future.add_done_callback(noted(began_ns))
        waiting.append(future)
    for future in waiting:
        future.result(timeout=30)
    return spans


@contextlib.contextmanager
def _stopped(view: DashboardProcess) -> Iterator[None]:
    pid = view.pid
    if pid is None:
        raise OperationError("the dashboard is gone")
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class _Visitors:
    """The pages, in a process of their own. Use as a context."""

    def __init__(self, visit: PageClientSpec) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "qts.verify.page_clients"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        os.setpriority(os.PRIO_PROCESS, self._process.pid, 19)  # they stand for other machines
        self.said = self._ask(msgspec.json.encode(visit))

    def __enter__(self) -> _Visitors:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # it ends with its input

    def show(self) -> None:
        if not self.said.pages:
            self.said = self._ask(b"open")

    def hide(self) -> None:
        self.said = self._ask(b"close")

    def _ask(self, line: bytes) -> PageClientCounts:
        to, back = self._process.stdin, self._process.stdout
        if to is None or back is None:
            raise AssertionError("both are pipes")
        to.write(line + b"\n")
        to.flush()
        answer = back.readline()
        if not answer:
            raise OperationError(f"the pages ended with code {self._process.wait()}; see above")
        return msgspec.json.decode(answer, type=PageClientCounts)


def _resident_mb(pid: int | None) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


def _report(
    seconds: float, pages: int, turns: list[LoadRound], said: PageClientCounts
) -> DashboardLoadReport:
    shown = [turn for turn in turns if turn.pages]
    p99 = {
        is_open: statistics.median(turn.p99_ms for turn in turns if bool(turn.pages) is is_open)
        for is_open in (False, True)
    }
    ratio = round(p99[True] / p99[False], 3)
    grown = round(shown[-1].dashboard_mb - shown[0].dashboard_mb, 1)
    goals = {
        f"P0 p99 with pages is {ratio:.2f} times that without, {RATIO:g} allowed": ratio < RATIO,
        f"the dashboard has grown by {grown:.1f} MB, {GROWTH_MB:g} allowed": grown < GROWTH_MB,
        f"the pages read {said.states:,} states": said.states > pages,
    }
    missed = [text for text, held in goals.items() if not held]
    return DashboardLoadReport(
        verdict="FAIL" if missed else "PASS",
        seconds=seconds,
        pages=pages,
        without_p99_ms=round(p99[False], 3),
        with_p99_ms=round(p99[True], 3),
        ratio=ratio,
        dashboard_mb=shown[-1].dashboard_mb,
        grown_mb=grown,
        states_read=said.states,
        answers_read=said.answers,
        turns=turns,
        missed=missed,
    )
