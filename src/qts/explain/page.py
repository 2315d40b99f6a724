"""Explanation of a day as tables of the terminal and as one HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from typing import TYPE_CHECKING

from qts.backtest import HtmlPage
from qts.explain.attribution import Item, PartName
from qts.explain.day import DayExplanation, SideFigures
from qts.explain.ledger import ZERO, plain
from qts.pipeline import SEOUL

if TYPE_CHECKING:
    from rich.table import Table

MAX_ITEMS = 10  # in the terminal
MAX_ROWS = 1000  # of a part on the page
_MEANINGS: dict[PartName, str] = {
    "signal": "signals that only one side had, or that asked for another size",
    "gate": "signals that one side refused, or cut",
    "manual": "orders of the operator, which a backtest never has",
    "delay": "the market when the venue had the order",
    "fill": "what was filled, at which price, against that market",
    "cost": "fees and taxes above those of the settings",
}
_PART_HEADS = ("part", "won", "orders", "what")
_ITEM_HEADS = ("part", "time", "strategy", "symbol", "side", "run", "backtest", "won", "why")


def figures(found: DayExplanation) -> Iterator[tuple[str, str]]:
    """Yield the figures as names and formatted values."""
    yield "day", f"{found.day} (Asia/Seoul)"
    yield "account", found.account
    yield "runs with a journal", f"{found.runs:,}"
    run, backtest, difference = _rounded(
        (found.live.earned, -found.backtest.earned, -found.difference)
    )
    yield "the run earned", f"{run:+,} won; {_counts(found.live)}"
    yield "its backtest", f"{-backtest:+,} won; {_counts(found.backtest)}"
    if found.held:
        yield "held before", f"{found.held:+,.0f} won of both, by positions from before the run"
    yield "difference", f"{-difference:+,} won"


def part_rows(found: DayExplanation) -> Iterator[tuple[str, int, str, str]]:
    """Yield name, won, number of orders and meaning of each part; the won add up."""
    total = found.difference.quantize(Decimal(1), ROUND_HALF_EVEN)
    *won, _ = _rounded((*(part.won for part in found.parts), -found.difference))
    for part, rounded in zip(found.parts, won, strict=True):
        yield part.part, rounded, f"{len(part.items):,}", _MEANINGS[part.part]
    yield "together", int(total), "", ""


def render_explanation_tables(found: DayExplanation) -> list[Table]:
    """Return the tables of the terminal: figures, parts, the largest orders."""
    from rich.table import Table
    from rich.text import Text

    main = Table(show_header=False, box=None, pad_edge=False)
    main.add_column(style="dim")
    main.add_column()
    for name, value in figures(found):
        main.add_row(name, Text(value, _colour(found.difference) if name == "difference" else ""))
    parts = Table(*_PART_HEADS, box=None, pad_edge=False, header_style="dim")
    parts.columns[1].justify = parts.columns[2].justify = "right"
    for name, won, orders, meaning in part_rows(found):
        parts.add_row(name, Text(f"{won:+,}", _colour(Decimal(won))), orders, meaning)
    tables = [main, parts]
    largest = _largest(found)
    if largest:
        items = Table(*_ITEM_HEADS, box=None, pad_edge=False, header_style="dim")
        items.columns[7].justify = "right"
        for item in largest[:MAX_ITEMS]:
            *cells, amount, why = _cells(item)
            items.add_row(item.part, *map(Text, cells), Text(amount, _colour(item.won)), Text(why))
        tables.append(items)
    return tables


def render_explanation_html(found: DayExplanation) -> str:
    """Return the explanation as one self-contained HTML page."""
    page = HtmlPage(f"QTS: {found.day} and its backtest", SEOUL)
    for note in found.notes:
        page.warning(note)
    page.figures(figures(found))
    page.heading("Parts of the difference, won")
    page.table(
        _PART_HEADS,
        (
            (name, (f"{won:+,}", _kind(Decimal(won))), orders, (meaning, "text"))
            for name, won, orders, meaning in part_rows(found)
        ),
    )
    for part in found.parts:
        if not part.items:
            continue
        page.heading(f"{part.part.capitalize()}: {_MEANINGS[part.part]}")
        if len(part.items) > MAX_ROWS:
            page.text(f"the largest {MAX_ROWS:,} of {len(part.items):,}")
        page.table(_ITEM_HEADS[1:], map(_row, part.items[:MAX_ROWS]))
    return page.render()


def _largest(found: DayExplanation) -> list[Item]:
    items = [item for part in found.parts for item in part.items]
    return sorted(items, key=lambda item: -abs(item.won))


def _cells(item: Item) -> tuple[str, ...]:
    return (
        f"{item.at.astimezone(SEOUL):%H:%M:%S}",
        item.strategy,
        item.symbol,
        item.side,
        _filled(item.live_quantity, item.live_price),
        _filled(item.backtest_quantity, item.backtest_price),
        f"{item.won:+,.0f}",
        item.reason,
    )


def _row(item: Item) -> tuple[str | tuple[str, str], ...]:
    *cells, amount, why = _cells(item)
    return (*cells, (amount, _kind(item.won)), (why, "text"))


def _filled(quantity: Decimal | None, price: Decimal | None) -> str:
    if quantity is None:
        return "-"
    return f"{plain(quantity)} @ {plain(price.quantize(Decimal('0.01')))}" if price else "0"


def _counts(side: SideFigures) -> str:
    return (
        f"{side.orders:,} orders, {side.fills:,} fills, {side.refused:,} signals refused,"
        f" fees {side.fees:,.0f}"
    )


def _rounded(values: Sequence[Decimal]) -> list[int]:
    """Round to whole won, so that the rounded values add up to their rounded sum."""
    found, exact, before = [], ZERO, 0
    for value in values:
        exact += value
        total = int(exact.quantize(Decimal(1), ROUND_HALF_EVEN))
        found.append(total - before)
        before = total
    return found


def _colour(value: Decimal) -> str:
    return "green" if value > 0 else "red" if value < 0 else ""


def _kind(value: Decimal) -> str:
    return "gain" if value > 0 else "loss" if value < 0 else ""
