"""Effect of open dashboard pages on lane P0 of a run, measured in alternating rounds.

    without   the dashboard's process is stopped with SIGSTOP
    with      ten pages are open and read, and one more client never reads

The run is a complete sandbox on the KIS simulator. The medians of the rounds' p99 are compared,
because other load on the machine distorts single rounds.
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
from qts.verify.order_latency import open_sandbox
from qts.verify.page_clients import PageClientCounts, PageClientSpec

RATE = 500  # P0 events per second
SETTLE_S = 1.0  # after pages opened or closed
ROUNDS = 16
MAX_RATIO, MAX_GROWTH_MB = 1.2, 16.0
MAX_CPU_OF_ONE_PAGE = 0.05  # of a core


class LoadRound(msgspec.Struct, frozen=True, kw_only=True):
    pages: int
    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    dashboard_mb: float
    dashboard_cpu: float  # share of a core


class DashboardLoadReport(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Literal["PASS", "FAIL"]
    seconds: float
    pages: int
    without_p99_ms: float  # medians of the rounds
    with_p99_ms: float
    ratio: float
    dashboard_mb: float  # resident, after the last round with pages
    grown_mb: float  # since the first round with pages
    dashboard_cpu: float  # share of a core, median of the rounds with pages
    states_read: int  # by the pages; the run sends four per second
    answers_read: int
    turns: list[LoadRound]
    missed: list[str]


async def measure_dashboard_load(
    seconds: float, pages: int, progress: Callable[[str], None]
) -> DashboardLoadReport:
    """Measure for `seconds` in a sandbox, with `pages` open in every other round."""
    with tempfile.TemporaryDirectory(prefix="qts-verify-") as folder:
        home = Home.at(Path(folder) / "home")
        async with _sandbox(home) as (trading, dashboard):
            token = Tokens.of(home.path).token(Role.READ).reveal()
            with _PageProcess(PageClientSpec(dashboard.address, token, pages)) as clients:
                progress(
                    f"{ROUNDS} rounds of {seconds / ROUNDS:.1f} s, {pages} pages in half of them"
                )
                runs = _rounds(trading.engine, dashboard, clients, seconds / ROUNDS, progress)
                rounds = [each async for each in runs]
                return _report(seconds, pages, rounds, clients.counts)


@contextlib.asynccontextmanager
async def _sandbox(home: Home) -> AsyncIterator[tuple[TradingSystem, DashboardProcess]]:
    settings = {"simulator": {"symbols": 300, "scan_s": 2.0}, "dashboard": {"port": 0}}
    config = msgspec.convert(settings, Config)
    clock = SystemClock()
    async with (
        open_sandbox(home, config, clock) as trading,
        DashboardProcess(config, home, clock) as dashboard,
    ):
        if dashboard.pid is None:
            raise OperationError("the dashboard did not start")
        yield trading, dashboard


async def _rounds(
    engine: EventEngine,
    dashboard: DashboardProcess,
    clients: _PageProcess,
    round_s: float,
    progress: Callable[[str], None],
) -> AsyncIterator[LoadRound]:
    """Measure rounds in the order - + + - - + + -, so that neither kind is always later."""
    for number in range(ROUNDS):
        is_open = number % 4 in (1, 2)
        await asyncio.to_thread(clients.open if is_open else clients.close)
        with contextlib.nullcontext() if is_open else _stopped(dashboard):
            await asyncio.sleep(SETTLE_S)
            began_s, used_s = time.monotonic(), _cpu_s(dashboard.pid)
            latencies = await asyncio.to_thread(_measure_p0, engine, round_s)
            cpu = (_cpu_s(dashboard.pid) - used_s) / (time.monotonic() - began_s)
        p50, p99, maximum = (
            round(float(each), 3) for each in np.percentile(latencies, (50, 99, 100))
        )
        result = LoadRound(
            pages=clients.counts.pages,
            count=len(latencies),
            p50_ms=p50,
            p99_ms=p99,
            max_ms=maximum,
            dashboard_mb=round(_resident_mb(dashboard.pid), 1),
            dashboard_cpu=round(cpu, 4),
        )
        latency = f"P0 p50 {p50:.2f}  p99 {p99:.2f}  max {maximum:.2f} ms"
        progress(f"{result.pages:3} pages   {latency}  dashboard {cpu:.1%} of a core")
        yield result


def _measure_p0(engine: EventEngine, seconds: float) -> list[float]:
    """Publish P0 events at a steady pace; return the milliseconds until each was handled."""
    latencies: list[float] = []
    futures: list[Future[None]] = []

    def recorder(began_ns: int) -> Callable[[Future[None]], None]:
        return lambda _: latencies.append((time.perf_counter_ns() - began_ns) / 1e6)

    due = time.monotonic()
    for number in range(int(seconds * RATE)):
        due += 1 / RATE
        time.sleep(max(0.0, due - time.monotonic()))
        payload = p.BrokerDisconnect(broker="verify", reason=f"measurement, {number // RATE}")
        event = engine.new_event("BROKER_DISCONNECT", payload, "verify")
        began_ns = time.perf_counter_ns()
        future = engine.publish_for_ack(event)
        future.add_done_callback(recorder(began_ns))
        futures.append(future)
    for future in futures:
        future.result(timeout=30)
    return latencies


@contextlib.contextmanager
def _stopped(dashboard: DashboardProcess) -> Iterator[None]:
    pid = dashboard.pid
    if pid is None:
        raise OperationError("the dashboard has ended")
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class _PageProcess:
    """Process that runs the page clients; a context manager."""

    def __init__(self, spec: PageClientSpec) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "qts.verify.page_clients"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        os.setpriority(
            os.PRIO_PROCESS, self._process.pid, 19
        )  # in use, pages run on other machines
        self.counts = self._send(msgspec.json.encode(spec))

    def __enter__(self) -> _PageProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # it ends when stdin closes

    def open(self) -> None:
        if not self.counts.pages:
            self.counts = self._send(b"open")

    def close(self) -> None:
        self.counts = self._send(b"close")

    def _send(self, line: bytes) -> PageClientCounts:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise AssertionError("both are pipes")
        stdin.write(line + b"\n")
        stdin.flush()
        answer = stdout.readline()
        if not answer:
            raise OperationError(f"page clients exited with code {self._process.wait()}")
        return msgspec.json.decode(answer, type=PageClientCounts)


def _resident_mb(pid: int | None) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


def _cpu_s(pid: int | None) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _report(
    seconds: float, pages: int, rounds: list[LoadRound], counts: PageClientCounts
) -> DashboardLoadReport:
    with_pages = [each for each in rounds if each.pages]
    p99 = {
        is_open: statistics.median(each.p99_ms for each in rounds if bool(each.pages) is is_open)
        for is_open in (False, True)
    }
    ratio = round(p99[True] / p99[False], 3)
    grown = round(with_pages[-1].dashboard_mb - with_pages[0].dashboard_mb, 1)
    cpu = round(statistics.median(each.dashboard_cpu for each in with_pages), 4)
    goals = {
        f"P0 p99 with pages is {ratio:.2f} times that without; limit {MAX_RATIO:g}": ratio
        < MAX_RATIO,
        f"the dashboard grew by {grown:.1f} MB; limit {MAX_GROWTH_MB:g}": grown < MAX_GROWTH_MB,
        f"one page took {cpu:.1%} of a core; limit {MAX_CPU_OF_ONE_PAGE:.0%}": pages > 1
        or cpu < MAX_CPU_OF_ONE_PAGE,
        f"the pages read only {counts.states:,} states": counts.states > pages,
    }
    missed = [text for text, met in goals.items() if not met]
    return DashboardLoadReport(
        verdict="FAIL" if missed else "PASS",
        seconds=seconds,
        pages=pages,
        without_p99_ms=round(p99[False], 3),
        with_p99_ms=round(p99[True], 3),
        ratio=ratio,
        dashboard_mb=with_pages[-1].dashboard_mb,
        grown_mb=grown,
        dashboard_cpu=cpu,
        states_read=counts.states,
        answers_read=counts.answers,
        turns=rounds,
        missed=missed,
    )
