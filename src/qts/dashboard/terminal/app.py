"""Textual application of `qts top`: a banner, the lanes and four tables, at once if they fit."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, Vertical
from textual.css.query import NoMatches
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Label, Static, TabbedContent, TabPane

from qts.dashboard.runs import RunsPage
from qts.dashboard.terminal.tables import (
    LANES,
    RUNS,
    TABLES,
    Row,
    StatusSource,
    TerminalSnapshot,
    banner,
    is_normal,
    lanes,
    rows_of,
    runs,
)
from qts.domain import OperationError, RefusedError

REFRESH_INTERVAL_S = 0.25
LARGE = (150, 36)  # columns and lines from which on all tables are shown at once
HELP = """\
tab, shift+tab  next, previous table (a large terminal shows all of them)
r               all runs on this database; enter shows the chosen one
k               stop trading: the kill switch, after a confirmation
q, ctrl+c       quit; the run goes on
?               this help

The banner says whether QTS trades and, if not, why. It is red when it does not.
Lanes: depth of the queue, its limit, and latency against the limit of the lane.
An order, its steps and its cancel: qts orders show, qts orders cancel.
More figures, charts and actions: qts dashboard"""


class ConfirmDialog(ModalScreen[bool]):
    """Confirmation to stop trading; only y confirms."""

    CSS = """
    ConfirmDialog { align: center middle; }
    ConfirmDialog > Vertical { width: 60; height: auto; border: heavy $error; padding: 1 2; }
    ConfirmDialog > Vertical { background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q,enter", "answer(False)", "no"),
    ]

    def __init__(self, accounts: str = "") -> None:
        super().__init__()
        self._accounts = accounts  # named where there are several runs

    def compose(self) -> ComposeResult:
        with Vertical():
            if self._accounts:
                yield Label(f"Account {self._accounts}")
            yield Label("Stop all trading? No order is sent, not even a stop's.")
            yield Label("Positions and orders at the venue stay as they are.")
            yield Label("y: stop, n: cancel")

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)


class HelpScreen(ModalScreen[None]):
    """Keys, and what the parts of the screen mean; any of them closes it."""

    CSS = """
    HelpScreen { align: center middle; }
    HelpScreen > Static { width: auto; max-width: 96%; height: auto; border: heavy $primary; }
    HelpScreen > Static { padding: 1 2; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q,question_mark", "dismiss(None)", "close"),
    ]

    def compose(self) -> ComposeResult:
        yield Static(HELP, id="help", markup=False)


class RunsScreen(ModalScreen[str]):
    """All runs on the database; enter returns the account of the chosen one."""

    CSS = """
    RunsScreen { align: center middle; }
    RunsScreen > Vertical { width: 96%; height: 80%; border: heavy $primary; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,r", "dismiss(None)", "close")]

    def __init__(self, page: RunsPage) -> None:
        super().__init__()
        self._page = page

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label("Runs on this database; (figures) in brackets are old, ? unknown, ! alerts")
            yield DataTable(id="runs", cursor_type="row")

    def on_mount(self) -> None:
        table = self.query_one("#runs", DataTable)
        table.add_columns(*RUNS)
        table.add_rows(runs(self._page))
        table.focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.cursor_row < len(self._page.runs):  # below them are the sums
            self.dismiss(self._page.runs[event.cursor_row].account)


class Top(App[None]):
    """Live status, refreshed four times a second; its only action is to stop trading."""

    CSS = """
    #banner { height: auto; max-height: 5; background: $success-darken-2; color: $text; }
    #banner.trouble { background: $error; }
    #lanes { height: 5; }
    TabbedContent { height: 1fr; }
    TabPane { padding: 0; }
    TabPane DataTable { height: 1fr; }
    #all { display: none; height: 1fr; grid-size: 2; }
    #all Label { background: $panel; width: 1fr; padding: 0 1; }
    #all DataTable { height: 1fr; }
    .large #all { display: block; }
    .large #tabs { display: none; }
    """
    TITLE = "QTS"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", priority=True, show=False),
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("r", "runs", "runs"),
        Binding("k", "kill", "stop trading"),
        Binding("tab", "next(1)", "next table", priority=True),
        Binding("shift+tab", "next(-1)", "previous table", priority=True, show=False),
    ]

    def __init__(self, source: StatusSource, actor: str) -> None:
        super().__init__()
        self._source = source
        self._actor = actor
        self.snapshot = TerminalSnapshot(trouble="loading ...")

    def compose(self) -> ComposeResult:
        yield Static(id="banner", markup=False)
        yield DataTable(id="lanes", cursor_type="none")
        with TabbedContent(id="tabs"):
            for name in TABLES:
                with TabPane(name, id=name):
                    yield DataTable(id=f"{name}-rows", cursor_type="none")
        with Grid(id="all"):
            for name in TABLES:
                with Vertical():
                    yield Label(name)
                    yield DataTable(id=f"{name}-all", cursor_type="none")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#lanes", DataTable).add_columns(*LANES)
        for name, headings in TABLES.items():
            self.query_one(f"#{name}-rows", DataTable).add_columns(*headings)
            self.query_one(f"#{name}-all", DataTable).add_columns(*headings)
        self._show()
        self.run_worker(self._update_loop(), exclusive=True)

    async def _update_loop(self) -> None:
        while True:
            self.snapshot = await self._source.read()
            try:
                self._show()
            except NoMatches:  # the application is closing
                return
            await asyncio.sleep(REFRESH_INTERVAL_S)

    def _show(self) -> None:
        widget = self.query_one("#banner", Static)
        widget.update("\n".join(banner(self.snapshot)))
        widget.set_class(not is_normal(self.snapshot), "trouble")
        live = self.snapshot.live
        self._fill("#lanes", list(lanes(live)) if live else [])
        if self.screen_stack[0].has_class("large"):
            for name in TABLES:
                self._fill(f"#{name}-all", rows_of(name, self.snapshot))
            return
        name = self.query_one("#tabs", TabbedContent).active
        if name in TABLES:
            self._fill(f"#{name}-rows", rows_of(name, self.snapshot))

    def on_resize(self, event: Resize) -> None:
        is_large = event.size.width >= LARGE[0] and event.size.height >= LARGE[1]
        self.screen_stack[0].set_class(is_large, "large")

    def _fill(self, table_id: str, rows: list[Row]) -> None:
        table = self.query_one(table_id, DataTable)
        scroll_y = table.scroll_y
        table.clear()
        table.add_rows(rows)
        table.scroll_to(y=scroll_y, animate=False)

    def on_tabbed_content_tab_activated(self) -> None:
        self._show()

    def action_next(self, step: int) -> None:
        tabs, names = self.query_one("#tabs", TabbedContent), list(TABLES)
        tabs.active = names[(names.index(tabs.active) + step) % len(names)]

    def action_help(self) -> None:
        self.push_screen(HelpScreen())

    def action_runs(self) -> None:
        if self.snapshot.runs is None:
            self.notify("The runs are not read yet.")
            return
        self.push_screen(RunsScreen(self.snapshot.runs), self._on_chosen)

    async def _on_chosen(self, account: str | None) -> None:
        if account is None:
            return
        try:
            await self._source.choose(account)
        except (OperationError, RefusedError) as error:
            self.notify(f"NOT shown: {error}", severity="error", timeout=30)

    def action_kill(self) -> None:
        if "kill_switch" in self.snapshot.verdict.codes:
            self.notify("Trading is stopped already; qts kill off allows it again.")
            return
        page = self.snapshot.runs
        accounts = ", ".join(page.own) if page is not None and len(page.runs) > 1 else ""
        self.push_screen(ConfirmDialog(accounts), self._on_confirm)

    async def _on_confirm(self, yes: bool | None) -> None:
        if not yes:
            return
        try:
            await self._source.kill(self._actor)
        except OperationError as error:
            self.notify(f"NOT stopped: {error}", severity="error", timeout=30)
        else:
            self.notify("Trading is stopped.")
