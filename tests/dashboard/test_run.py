"""`qts run` with its dashboard, in a real browser."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from qts.app import DashboardLaunch, StartupInfo
from qts.app.dashboard_process import DashboardProcess, _shown_address, effective_settings
from qts.cli.run import _RunOutput
from qts.config import Config
from qts.dashboard import DashboardConfig, Role, Tokens
from qts.database import DatabaseConfig
from qts.domain import Secret, SystemClock
from qts.embedded import Home
from tests.acceptance.runs import Run, running
from tests.dashboard.test_pages import shoot, visit
from tests.embedded.clients import until

CANARY = "canary-4f1d2c-do-not-tell"
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run").resolve() / "home"


@pytest.fixture(scope="module")
def run(home: Path) -> Iterator[Run]:
    """One run for the tests of this file, in turn; the last one ends it."""
    with running(
        home,
        QTS_DASHBOARD__ENABLED="true",
        QTS_DASHBOARD__PORT="0",
        QTS_VENUES__UPBIT__ACCESS_KEY=CANARY,
    ) as found:
        yield found


@pytest.fixture(scope="module")
def link(run: Run) -> str:
    run.until("log in")
    code, printed = _qts(run.home, "dashboard", "--link", "admin")
    assert code == 0, printed
    return printed


def first_fill(run: Run) -> None:
    assert until(lambda: bool(run.query("SELECT 1 FROM fill LIMIT 1")), DEADLINE_S)


async def test_the_operator_watches_and_controls_a_run(run: Run, link: str, browser: Any) -> None:
    await asyncio.to_thread(first_fill, run)
    async with visit(browser, link) as tab:
        await tab.wait_text("#top", "SIMULATED")
        for name, words in {
            "overview": "P0 p99",
            "events": "LEVEL_0",
            "feed": "scan",
            "orders": "ACKED",
            "strategies": "moving_average_swing",
            "outbox": "FillReceived",
            "cache": "price",
            "settings": "events.p0.queue_size",
        }.items():
            await tab.open(name)
            await tab.wait_text("main", words)
            assert CANARY not in await tab.page.content()
            await shoot(tab.page, f"run-{name}.png")
        latest = "SELECT symbol FROM fill ORDER BY traded_at DESC LIMIT 1"
        ((symbol,),) = await asyncio.to_thread(run.query, latest)
        await tab.open(f"market/{symbol}")
        await tab.page.wait_for_selector("#price-chart canvas")
        await tab.page.wait_for_selector('#price-chart[data-fills]:not([data-fills="0"])')
        held = "SELECT symbol FROM position WHERE quantity <> 0 LIMIT 1"
        ((symbol,),) = await asyncio.to_thread(run.query, held)
        await tab.open(f"market/{symbol}")
        await tab.wait_text("main", "KOSPI200")  # the indices
        await tab.page.wait_for_selector("main tr.good td")  # a bid of the order book
        await shoot(tab.page, "run-market.png")

        await tab.open("strategies")
        await tab.page.fill('input[data-strategy="rsi_scalper"][data-param="length"]', "9")
        await tab.page.click('[data-do="params"][data-strategy="rsi_scalper"]')
        await tab.page.click("#yes")
        await tab.page.wait_for_function(
            "() => document.querySelector("
            "'input[data-strategy=rsi_scalper][data-param=length]').placeholder === '9'"
        )  # the strategy has applied it

        await tab.open("overview")
        await tab.page.click("#kill")
        await tab.page.fill("#reason", "enough")
        await tab.page.click("#yes")
        await tab.page.wait_for_selector("#allow")
    rows = await asyncio.to_thread(run.query, "SELECT action, outcome FROM dashboard_action")
    assert {("params", "DONE"), ("kill", "DONE")} <= {(row[0], row[1]) for row in rows}


async def test_the_link_can_be_printed_again(link: str, home: Path) -> None:
    admin, reader, invalid = await asyncio.gather(
        *(
            asyncio.to_thread(_qts, home, "dashboard", "--link", role)
            for role in ("admin", "read", "root")
        )
    )
    assert admin == (0, link)
    assert reader[1].partition("#")[0] == link.partition("#")[0]
    assert reader[1] != link
    assert invalid[0] == 2
    assert stat.S_IMODE((home / "dashboard.json").stat().st_mode) == 0o600


async def test_a_dashboard_that_dies_is_started_again_at_its_address(run: Run, link: str) -> None:
    address = link.partition("/login")[0]
    first = await asyncio.to_thread(_answer, address)
    assert "QTS" in first
    (pid,) = _children(run.process.pid, "--launched")
    assert os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, run.process.pid)
    os.kill(pid, signal.SIGKILL)
    restarted = lambda: _children(run.process.pid, "--launched") not in ([], [pid])  # noqa: E731
    assert await asyncio.to_thread(until, restarted, DEADLINE_S)
    assert await asyncio.to_thread(_answer, address) == first
    assert run.process.poll() is None


async def test_it_ends_with_its_run_and_the_next_start_prints_no_link(
    run: Run, link: str, home: Path, browser: Any
) -> None:
    assert await asyncio.to_thread(run.end, signal.SIGTERM) == 0
    with pytest.raises(OSError, match="refused"):
        _answer(link.partition("/login")[0])
    assert not (home / "dashboard.address").exists()
    logs = "".join(path.read_text(errors="replace") for path in (home / "log").iterdir())
    for text in (logs, run.output, run.errors):
        assert CANARY not in text
        assert link.partition("#")[2] not in text
    assert "log in  qts dashboard --link admin\n" in run.output
    with running(home, QTS_DASHBOARD__ENABLED="true", QTS_DASHBOARD__PORT="0") as second:
        await asyncio.to_thread(second.until, "dashboard  http://127.0.0.1:")
        address = (home / "dashboard.address").read_text().strip()
        async with visit(browser, f"{address}/login#{link.partition('#')[2]}") as tab:
            await tab.page.wait_for_selector("#ages:empty", state="attached")
            await tab.wait_text("#top", "SIMULATED")
            code = await asyncio.to_thread(second.end, signal.SIGKILL)
            assert code == -signal.SIGKILL  # its servers and its dashboard end with it
            await tab.page.wait_for_selector("#verdict.lost", timeout=DEADLINE_S * 1000)
            await tab.wait_text("#ages", "old")
            grey = "getComputedStyle(document.querySelector('.figures [data-from=run]')).filter"
            assert await tab.page.evaluate(grey) == "grayscale(1)"
            assert await tab.page.title() == "No connection · QTS"
            tab.problems.clear()  # the browser logs the refused connections
    assert "log in" not in second.output


@pytest.mark.parametrize(("on_terminal", "newline"), [(True, b"\r\n"), (False, b"\n")])
def test_the_login_link_is_printed_on_a_terminal_only(
    on_terminal: bool, newline: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # colours in a log do not make it a terminal
    link = f"http://127.0.0.1:8420/login#{CANARY}"
    started = StartupInfo("home", [], 1, 0, 0.1, dashboard="http://127.0.0.1:8420", login=link)
    read, write = os.openpty() if on_terminal else os.pipe()
    with os.fdopen(read, "rb") as out, os.fdopen(write, "w") as file:
        _RunOutput(Console(file=file, width=200, highlight=False), None).ready(started)
        print("the end", file=file, flush=True)
        # A terminal passes on what is written in pieces.
        printed = b"".join(iter(out.readline, b"the end" + newline)).decode()
    assert (link in printed) == on_terminal
    assert (CANARY in printed) == on_terminal
    assert ("log in  qts dashboard --link admin" in printed) != on_terminal


def test_a_run_that_starts_in_lockdown_says_so_at_once() -> None:
    text = io.StringIO()
    output = _RunOutput(Console(file=text, width=200, highlight=False), None)
    reason = "FS104 losses above 5 %, since 2026-03-02 09:00:00 UTC"
    output.ready(StartupInfo("home", [], 1, 0, 0.1, lockdown=reason))
    (line,) = [line for line in text.getvalue().splitlines() if "LOCKDOWN" in line]
    assert reason in line
    assert line.endswith('qts failsafe release --reason "..."')


def test_a_dashboard_alone_prints_its_link_on_a_terminal_only(tmp_path: Path) -> None:
    tokens, address = Tokens.of(tmp_path), "http://127.0.0.1:8420"
    token = tokens.token(Role.ADMIN).reveal()
    assert token in _shown_address(tokens, address, on_terminal=True)
    elsewhere = _shown_address(tokens, address, on_terminal=False)
    assert token not in elsewhere
    assert elsewhere == f"{address}, log in: qts dashboard --link admin"
    assert _shown_address(Tokens.of(tmp_path), address, on_terminal=True) == address


def test_no_run_no_dashboard(tmp_path: Path) -> None:
    code, output = _qts(tmp_path / "home", "dashboard")
    assert code == 2
    assert "no QTS runs on home" in output


async def test_a_run_without_a_dashboard_has_none(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    config = Config(dashboard=DashboardConfig(enabled=False))
    async with DashboardProcess(config, home, SystemClock()) as view:
        assert (view.address, view.link, view.pid) == ("", "", None)
    assert not (home.path / "dashboard.json").exists()


async def test_a_taken_port_does_not_stop_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = Config(dashboard=DashboardConfig(port=taken.getsockname()[1]))
        async with DashboardProcess(config, Home.at(tmp_path / "home"), SystemClock()) as view:
            assert (view.address, view.pid) == ("", None)
    assert "dashboard not started" in capfd.readouterr().err


def test_settings_hide_secrets_and_the_pipe_carries_them(tmp_path: Path) -> None:
    config = Config(database=DatabaseConfig(url=Secret(f"postgresql://u:{CANARY}@h/d")))
    assert CANARY not in json.dumps(effective_settings(config))
    launch = DashboardLaunch.of(config, Home.at(tmp_path / "home"), 7)
    decoded = DashboardLaunch.decode(launch.encode())
    assert decoded == launch
    assert decoded.database.url == config.database.url
    assert CANARY not in repr(decoded)


def _answer(address: str) -> str:
    with urllib.request.urlopen(f"{address}/login", timeout=DEADLINE_S) as reply:  # noqa: S310 - own child process
        return str(reply.read().decode())


def _children(pid: int, word: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            words = (entry / "cmdline").read_text()
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and word in words:
                found.append(int(entry.name))
    return found


def _qts(home: Path, *arguments: str) -> tuple[int, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("QTS_")}
    done = subprocess.run(
        [sys.executable, "-m", "qts", *arguments],
        capture_output=True,
        text=True,
        env={**clean, "QTS_HOME": str(home)},
        timeout=DEADLINE_S,
        check=False,
    )
    return done.returncode, (done.stdout + done.stderr).strip()
