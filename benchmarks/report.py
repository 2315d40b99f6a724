"""Result of a benchmark: rows of ours beside a peer, each with its goals."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text


class Goal(msgspec.Struct, frozen=True):
    """`ours >= 8` or `ratio <= 0.8`."""

    of: Literal["ours", "ratio"]
    sign: Literal[">=", "<=", "<"]
    bound: float

    def __str__(self) -> str:
        return f"{self.of} {self.sign} {self.bound:g}"

    def met(self, row: Row) -> bool:
        value = row.ours if self.of == "ours" else row.ratio
        if self.sign == ">=":
            return value >= self.bound
        return value <= self.bound if self.sign == "<=" else value < self.bound


class Row(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    metric: str
    unit: str
    better: Literal["higher", "lower"]
    ours: float
    peer: float
    peer_name: str
    goals: tuple[Goal, ...] = ()
    note: str = ""

    @property
    def ratio(self) -> float:
        return self.ours / self.peer if self.peer else 0.0

    @property
    def goal(self) -> str | None:
        return " and ".join(map(str, self.goals)) or None

    @property
    def holds(self) -> bool:
        """Return whether every goal is met; true without a goal."""
        return all(goal.met(self) for goal in self.goals)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "metric": self.metric,
            "unit": self.unit,
            "better": self.better,
            "ours": _digits(self.ours),
            "peer": _digits(self.peer),
            "peer_name": self.peer_name,
            "ratio": _digits(self.ratio),
            "goal": self.goal,
            "holds": self.holds,
            "note": self.note,
        }


class Picture(NamedTuple):
    name: str  # of the file, without .svg
    svg: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    machine: dict[str, Any]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()

    @property
    def holds(self) -> bool:
        return all(row.holds for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        rows = [row.to_json() for row in self.rows]
        return {"machine": self.machine, "rows": rows, "notes": list(self.notes)}

    def render(self) -> str:
        """Return the machine, the table and the notes as text for a terminal."""
        width = None if sys.stdout.isatty() else 200
        console = Console(width=width)
        with console.capture() as text:
            for name, value in self.machine.items():
                console.print(Text(f"{name.replace('_', ' '):<14} {_shown(value)}"))
            console.print(_table(self.rows))
            for note in self.notes:
                console.print(Text(f"note: {note}"))
            console.print(Text(self._verdict()))
        return text.get().rstrip()

    def _verdict(self) -> str:
        judged = [row for row in self.rows if row.goals]
        missed = [row.name for row in judged if not row.holds]
        if not missed:
            return f"all {len(judged)} goals hold"
        return f"{len(missed)} of {len(judged)} goals do not hold: {', '.join(missed)}"


def _table(rows: tuple[Row, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("", "metric", "ours", "peer", "", "ratio", "goal", "", ""):
        right = title in ("ours", "peer", "ratio")
        table.add_column(title, overflow="fold", justify="right" if right else "left")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: Row) -> Iterator[Text]:
    yield Text(row.name)
    yield Text(f"{row.metric}, {row.unit}")
    yield Text(_number(row.ours), "bold")
    yield Text(_number(row.peer))
    yield Text(row.peer_name)
    yield Text(f"{_number(row.ratio)} x")
    yield Text(row.goal or "")
    verdict = ("holds", "green") if row.holds else ("does not hold", "bold red")
    yield Text(*verdict) if row.goals else Text("")
    yield Text(row.note, "dim")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _digits(value: float) -> float:
    return float(f"{value:.4g}")


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {_shown(one)}" for name, one in value.items())
    if isinstance(value, float):
        return _number(value)
    return str(value)
