"""The screen, driven by keys at 80 x 24."""

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
from textual.widgets import DataTable, Static, TabbedContent

from qts.cache import CacheConfig, CacheStore
from qts.cache.redis import RedisStore
from qts.dashboard import LiveStatusSource, TerminalSnapshot, Top
from qts.dashboard.terminal.app import ConfirmDialog
from qts.database import Database
from qts.domain import OperationError, Secret
from qts.risk import KillSwitch
from tests.cli.test_run import Qts
from tests.dashboard.statuses import live, tell
from tests.dashboard.terminal.test_tables import an_order

SIZE = (80, 24)
PATIENCE_S = 60.0


class Told:
    """A Source that says what it is told to."""

    def __init__(self, seen: TerminalSnapshot) -> None:
        self.seen = seen
        self.killed: list[str] = []
        self.fails = ""
        self.looked = asyncio.Event()

    async def look(self) -> TerminalSnapshot:
        self.looked.set()
        return self.seen

    async def kill(self, actor: str) -> None:
        if self.fails:
            raise OperationError(self.fails)
        self.killed.append(actor)


def a_view(seen: TerminalSnapshot | None = None) -> tuple[Top, Told]:
    source = Told(seen or TerminalSnapshot(live(), [an_order()]))
    return Top(source, "kim"), source


def text_of(app: Top) -> str:
    return str(app.query_one("#banner", Static).render())


async def test_everything_fits_eighty_by_twenty_four() -> None:
    app, _ = a_view()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        for widget_id in ("banner", "lanes", "tabs"):
            place = app.query_one(f"#{widget_id}").region
            assert place.right <= 80
            assert place.bottom <= 24
        table = app.query_one("#lanes", DataTable)
        assert table.virtual_size.width <= 80
        assert table.row_count == 4
        rows = app.query_one("#Orders-rows", DataTable)
        assert rows.region.height >= 10
        assert rows.virtual_size.width <= 80


async def test_tab_goes_round_the_tables() -> None:
    app, _ = a_view()
    async with app.run_test(size=SIZE) as pilot:
        seen = []
        for _ in range(5):
            name = app.query_one("#tabs", TabbedContent).active
            seen.append(name)
            await pilot.pause()
            assert app.query_one(f"#{name}-rows", DataTable).row_count >= 1
            await pilot.press("tab")
        assert seen == ["Orders", "Positions", "Feed", "Alerts", "Orders"]
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
    source.fails = "the database is away"
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("k", "y")
        await pilot.pause()
        told = [notification.message for notification in app._notifications]
    assert told == ["NOT stopped: the database is away"]


async def test_news_is_shown_within_a_second() -> None:
    app, source = a_view()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        assert text_of(app).startswith("NORMAL")
        source.seen = TerminalSnapshot(trouble="nothing runs here")
        source.looked.clear()
        async with asyncio.timeout(PATIENCE_S):
            await source.looked.wait()
        await pilot.pause()
        assert text_of(app).startswith("QTS  nothing runs here")
        assert app.query_one("#banner").has_class("trouble")
        assert app.query_one("#lanes", DataTable).row_count == 0


@pytest.fixture
async def store(valkey_url: Secret) -> AsyncIterator[CacheStore]:
    async with RedisStore.open(valkey_url, CacheConfig()) as store:
        yield store


async def test_the_servers_say_what_a_run_told(
    store: CacheStore, database: Database, database_url: Secret
) -> None:
    prefix = f"top-{os.getpid()}:"
    source = LiveStatusSource(store, database, prefix)
    assert (await source.look()).trouble.startswith("nothing runs here")
    told = await tell(store, prefix)
    assert (await source.look()).live == told
    await source.kill("kim")
    switch = (await KillSwitch(database).all())["account"]
    assert (switch.enabled, switch.changed_by) == (False, "kim")


# --- under tmux, on a real run ------------------------------------------------------------------


class Tmux:
    """One session of a server of its own, 80 x 24."""

    def __init__(self, folder: Path) -> None:
        self._base = ["tmux", "-S", str(folder / "tmux.sock"), "-f", "/dev/null"]

    def do(self, *words: str) -> str:
        done = subprocess.run(
            [*self._base, *words], capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout

    def until(self, true: Callable[[str], bool]) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            screen = self.do("capture-pane", "-p")
            if true(screen):
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
        drawn = ("NORMAL", "PAPER on paper", "P0", "P1", "P2", "P3", "Positions", "quit")
        tmux.until(lambda text: all(word in text for word in drawn))
        # The last line is drawn with the others, and once more when the first figures come.
        screen = tmux.until(lambda text: any("quit" in line for line in text.splitlines()[23:24]))
        assert "NORMAL" in screen.splitlines()[0]
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


if shutil.which("tmux"):  # a terminal that is nobody's; the tests above need none
    test_under_tmux_keys_work_and_kill_stops_a_real_run = keys_work_and_kill_stops_a_real_run
