"""`qts top` on the screen: a banner, the lanes, and four tables to choose from."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.css.query import NoMatches
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Label, Static, TabbedContent, TabPane

from qts.dashboard.terminal.source import StatusSource, TerminalSnapshot
from qts.dashboard.terminal.tables import LANES, TABLES, Row, banner, is_calm, lanes, rows_of
from qts.domain import OperationError

EVERY_S = 0.25


class ConfirmDialog(ModalScreen[bool]):
    """Yes or no; anything else is no."""

    CSS = """
    Question { align: center middle; }
    Question > Vertical { width: 60; height: 7; border: heavy $error; padding: 1 2; }
    Question > Vertical { background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q,enter", "answer(False)", "no"),
    ]

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label("Stop all trading? No order leaves, not even a stop's.")
            yield Label("Positions and orders at the venue stay as they are.")
            yield Label("y stops, n goes back")

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)


class Top(App[None]):
    """Reads its source four times a second; the only thing it does is to stop trading."""

    CSS = """
    #banner { height: 2; background: $success-darken-2; color: $text; }
    #banner.trouble { background: $error; }
    #lanes { height: 5; }
    TabbedContent { height: 1fr; }
    TabPane { padding: 0; }
    TabPane DataTable { height: 1fr; }
    """
    TITLE = "QTS"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("k", "kill", "stop trading"),
        Binding("tab", "next(1)", "next table", priority=True),
        Binding("shift+tab", "next(-1)", "last table", priority=True, show=False),
    ]

    def __init__(self, source: StatusSource, actor: str) -> None:
        super().__init__()
        self._source = source
        self._actor = actor
        self.seen = TerminalSnapshot(trouble="looking ...")

    def compose(self) -> ComposeResult:
        yield Static(id="banner", markup=False)
        yield DataTable(id="lanes", cursor_type="none")
        with TabbedContent(id="tabs"):
            for name in TABLES:
                with TabPane(name, id=name):
                    yield DataTable(id=f"{name}-rows", cursor_type="none")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#lanes", DataTable).add_columns(*LANES)
        for name, headings in TABLES.items():
            self.query_one(f"#{name}-rows", DataTable).add_columns(*headings)
        self._show()
        self.run_worker(self._follow(), exclusive=True)

    async def _follow(self) -> None:
        while True:
            self.seen = await self._source.look()
            try:
                self._show()
            except NoMatches:  # the screen closes, and we with it
                return
            await asyncio.sleep(EVERY_S)

    def _show(self) -> None:
        told = self.query_one("#banner", Static)
        told.update("\n".join(banner(self.seen)))
        told.set_class(not is_calm(self.seen), "trouble")
        live = self.seen.live
        self._fill("#lanes", list(lanes(live)) if live else [])
        name = self.query_one("#tabs", TabbedContent).active
        if name in TABLES:
            self._fill(f"#{name}-rows", rows_of(name, self.seen))

    def _fill(self, table_id: str, rows: list[Row]) -> None:
        table = self.query_one(table_id, DataTable)
        at = table.scroll_y
        table.clear()
        table.add_rows(rows)
        table.scroll_to(y=at, animate=False)

    def on_tabbed_content_tab_activated(self) -> None:
        self._show()

    def action_next(self, step: int) -> None:
        tabs, names = self.query_one("#tabs", TabbedContent), list(TABLES)
        tabs.active = names[(names.index(tabs.active) + step) % len(names)]

    def action_kill(self) -> None:
        live = self.seen.live
        if live is not None and not live.safety.trading:
            self.notify("Trading is stopped already; qts kill off allows it again.")
            return
        self.push_screen(ConfirmDialog(), self._answered)

    async def _answered(self, yes: bool | None) -> None:
        if not yes:
            return
        try:
            await self._source.kill(self._actor)
        except OperationError as error:
            self.notify(f"NOT stopped: {error}", severity="error", timeout=30)
        else:
            self.notify("Trading is stopped.")
