"""The terminal application, driven by keys at 80 x 24."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.widgets import DataTable, Label, Static, TabbedContent

from qts.cache import CacheConfig, CacheStore
from qts.cache.redis import RedisStore
from qts.dashboard import LiveStatusSource, RunsPage, TerminalSnapshot, Top
from qts.dashboard.terminal.app import ConfirmDialog, HelpScreen
from qts.dashboard.terminal.tables import TABLES
from qts.database import Database
from qts.domain import OperationError, Secret
from qts.risk import KillSwitch
from tests.accounts import PAPER
from tests.cli.test_run import Qts
from tests.dashboard.statuses import live, publish, snapshot
from tests.dashboard.terminal.test_tables import a_run, an_order

SIZE = (80, 24)
TIMEOUT_S = 60.0


class FixedSource:
    """StatusSource with a given snapshot."""

    def __init__(self, snapshot: TerminalSnapshot) -> None:
        self.snapshot = snapshot
        self.killed: list[str] = []
        self.chosen: list[str] = []
        self.fails = ""
        self.was_read = asyncio.Event()

    async def read(self) -> TerminalSnapshot:
        self.was_read.set()
        return self.snapshot

    async def kill(self, actor: str) -> None:
        if self.fails:
            raise OperationError(self.fails)
        self.killed.append(actor)

    async def choose(self, account: str) -> None:
        if self.fails:
            raise OperationError(self.fails)
        self.chosen.append(account)


def a_view(shown: TerminalSnapshot | None = None) -> tuple[Top, FixedSource]:
    source = FixedSource(shown or snapshot(live(), [an_order()]))
    return Top(source, "kim"), source


def text_of(app: Top) -> str:
    return str(app.query_one("#banner", Static).render())


async def test_everything_fits_eighty_by_twenty_four() -> None:
    app, _ = a_view()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        for widget_id in ("banner", "lanes", "tabs"):
            region = app.query_one(f"#{widget_id}").region
            assert region.right <= 80
            assert region.bottom <= 24
        table = app.query_one("#lanes", DataTable)
        assert table.virtual_size.width <= 80
        assert table.row_count == 4
        rows = app.query_one("#Orders-rows", DataTable)
        assert rows.region.height >= 10
        assert rows.virtual_size.width <= 80


async def test_a_large_terminal_shows_all_tables_at_once() -> None:
    app, source = a_view()
    async with app.run_test(size=(200, 50)) as pilot:
        await asyncio.wait_for(source.was_read.wait(), TIMEOUT_S)
        await pilot.pause()
        assert all(app.query_one(f"#{name}-all", DataTable).row_count for name in TABLES)
        regions = {name: app.query_one(f"#{name}-all", DataTable).region for name in TABLES}
        assert all(each.width > 90 and each.height > 14 for each in regions.values()), regions
        assert len({(each.x, each.y) for each in regions.values()}) == len(TABLES)
        assert not app.query_one("#tabs").region.height
        await pilot.resize_terminal(*SIZE)
        await pilot.pause()
        assert app.query_one("#tabs").region.height > 10
        assert not app.query_one("#all").region.height


async def test_a_question_mark_shows_the_keys_and_ctrl_c_quits() -> None:
    app, source = a_view()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("question_mark")
        region = app.screen.query_one("#help").region
        assert [type(each) for each in app.screen_stack[1:]] == [HelpScreen]
        assert region.right <= SIZE[0]
        assert region.bottom <= SIZE[1]
        await pilot.press("escape")
        assert len(app.screen_stack) == 1
        await pilot.press("ctrl+c")
    assert app.return_code == 0
    assert source.killed == []


async def test_r_lists_the_runs_and_enter_shows_one() -> None:
    page = RunsPage(runs=[a_run("paper:1111"), a_run("upbit:2222")], totals=[], own=["paper:1111"])
    app, source = a_view(replace(snapshot(live(), []), runs=page))
    async with app.run_test(size=SIZE) as pilot:
        await asyncio.wait_for(source.was_read.wait(), TIMEOUT_S)
        await pilot.press("k")
        assert "paper:1111" in str(app.screen.query(Label).first().render())
        await pilot.press("n", "r")
        assert app.screen.query_one("#runs", DataTable).row_count == 2
        await pilot.press("down", "enter")
        await pilot.pause()
        assert source.chosen == ["upbit:2222"]
        assert len(app.screen_stack) == 1


async def test_tab_cycles_through_the_tables() -> None:
    app, _ = a_view()
    async with app.run_test(size=SIZE) as pilot:
        names = []
        for _ in range(5):
            name = app.query_one("#tabs", TabbedContent).active
            names.append(name)
            await pilot.pause()
            assert app.query_one(f"#{name}-rows", DataTable).row_count >= 1
            await pilot.press("tab")
        assert names == ["Orders", "Positions", "Feed", "Alerts", "Orders"]
        await pilot.press("shift+tab")
        assert app.query_one("#tabs", TabbedContent).active == "Orders"


async def test_q_ends_it() -> None:
    app, _ = a_view()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("q")
    assert not app.is_running


@pytest.mark.parametrize(
    ("keys", "killed"), [(["k", "y"], ["kim"]), (["k", "n"], []), (["k", "enter"], []), (["y"], [])]
)
async def test_trading_stops_only_after_a_yes(keys: list[str], killed: list[str]) -> None:
    app, source = a_view()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        await pilot.press(*keys)
        await pilot.pause()
        assert source.killed == killed
        assert not isinstance(app.screen, ConfirmDialog)


async def test_a_stop_that_failed_is_not_called_a_stop() -> None:
    app, source = a_view()
    source.fails = "the database is unreachable"
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("k", "y")
        await pilot.pause()
        messages = [notification.message for notification in app._notifications]
    assert messages == ["NOT stopped: the database is unreachable"]


async def test_a_change_is_shown() -> None:
    app, source = a_view()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        assert text_of(app).startswith("NORMAL")
        source.snapshot = TerminalSnapshot(trouble="no run found")
        source.was_read.clear()
        async with asyncio.timeout(TIMEOUT_S):
            await source.was_read.wait()
        await pilot.pause()
        assert text_of(app).startswith("QTS  no run found")
        assert app.query_one("#banner").has_class("trouble")
        assert app.query_one("#lanes", DataTable).row_count == 0


@pytest.fixture
async def store(valkey_url: Secret) -> AsyncIterator[CacheStore]:
    async with RedisStore.open(valkey_url, CacheConfig()) as store:
        yield store


async def test_the_source_reads_the_published_status(
    store: CacheStore, database: Database, database_url: Secret
) -> None:
    prefix = f"top-{os.getpid()}:"
    source = LiveStatusSource(store, database, prefix, PAPER)
    assert (await source.read()).verdict.en == "QTS does not run. Start it with qts run."
    published = await publish(store, prefix)
    assert (await source.read()).live == published
    await source.kill("kim")
    switch = (await KillSwitch(database, PAPER).all())["account"]
    assert (switch.enabled, switch.changed_by) == (False, "kim")


# --- under tmux, on a real run ------------------------------------------------------------------


class Tmux:
    """Session of a private tmux server, 80 x 24."""

    def __init__(self, folder: Path) -> None:
        self._base = ["tmux", "-S", str(folder / "tmux.sock"), "-f", "/dev/null"]

    def do(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._base, *arguments], capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout

    def until(self, condition: Callable[[str], bool]) -> str:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            screen = self.do("capture-pane", "-p")
            if condition(screen):
                return screen
            assert time.monotonic() < deadline, screen
            time.sleep(0.05)


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    session = Tmux(tmp_path)
    yield session
    session.do("kill-server")


def keys_work_and_kill_stops_a_real_run(tmux: Tmux, tmp_path: Path) -> None:
    home = tmp_path.resolve() / "home"
    run = Qts(home, "run", QTS_TELEMETRY__LOG_LEVEL="error")
    try:
        run.until("Ready")
        qts = f"QTS_HOME={shlex.quote(str(home))} {shlex.quote(sys.executable)} -m qts"
        tmux.do("new-session", "-d", "-x", "80", "-y", "24", f"{qts} top; echo ended; read line")
        drawn = ("SIMULATED on paper", "P0", "P1", "P2", "P3", "Positions", "quit")
        tmux.until(lambda text: all(word in text for word in drawn))
        # The last line is drawn with the others, and once more when the first figures come.
        screen = tmux.until(lambda text: any("quit" in line for line in text.splitlines()[23:24]))
        assert (
            "SIMULATED on paper" in screen.splitlines()[0]
        )  # after the state, which load may change
        tmux.do("send-keys", "Tab", "Tab")
        tmux.until(lambda text: "requests" in text and "market" in text)
        tmux.do("send-keys", "k")
        tmux.until(lambda text: "Stop all trading?" in text)
        tmux.do("send-keys", "y")
        tmux.until(lambda text: "STOPPED" in text)
        tmux.do("send-keys", "q")
        tmux.until(lambda text: "ended" in text)
    finally:
        run.close()


if shutil.which("tmux"):  # the tests above do not need tmux
    test_under_tmux_keys_work_and_kill_stops_a_real_run = keys_work_and_kill_stops_a_real_run
