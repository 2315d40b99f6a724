"""`qts data instruments`: what a venue lists, as stored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from qts.cli.console import (
    ConfigOption,
    JsonOption,
    format_number,
    load_config,
    print_json,
    with_database,
)
from qts.domain import RefusedError, check_name, nearest_name

if TYPE_CHECKING:
    from qts.config import Config
    from qts.database import Database
    from qts.domain import Instrument
    from qts.feed import InstrumentList

SCHEMA = 20  # adds the table

_HEAD = (
    f"{'symbol':<12}{'class':<8}{'board':<8}{'tick':>12}{'lot':>12}{'minimum':>9}{'tax':>8}  name"
)


def instruments(
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="PATTERN", help="Part of a symbol or a name, in any case."),
    ] = None,
    venue: Annotated[
        str | None,
        typer.Option(metavar="VENUE", help="The venue, if not feed.venue of the settings."),
    ] = None,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Fetch the venue's lists first; needs no key.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Maximum number of lines.")] = 50,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List or search the instruments of a venue.

    Shows what the last refresh stored: name, class, tick at the base price, lot, smallest order,
    tax on a sale, status. JSON has all rows; a backtest reads it with --instruments.

    Example: qts data instruments 삼성 --refresh
    """
    import msgspec

    from qts.venues import venue_names

    settings = load_config(config)
    chosen = venue or settings.feed.venues[0]
    check_name("venue", chosen, venue_names())

    async def read(database: Database) -> InstrumentList:
        return await _read(database, settings, chosen, refresh)

    found = with_database(config, read, SCHEMA)
    if not found.instruments:
        raise RefusedError(
            f"no instruments of {chosen} are stored; add --refresh, or start qts run"
        )
    matching = _matching(found.instruments, chosen, pattern)
    if as_json:
        print_json(msgspec.structs.replace(found, instruments=matching))
        return
    at = f"{found.refreshed_at:%Y-%m-%d %H:%M} UTC" if found.refreshed_at else "never"
    where = f"{chosen} simulator" if found.environment == "simulator" else chosen
    typer.echo(f"{len(matching):,} of {len(found.instruments):,} at {where}, refreshed {at}")
    typer.echo("\n".join([_HEAD, *map(_line, matching[:limit])]))
    if len(matching) > limit:
        typer.echo(f"{len(matching) - limit:,} more; see --limit")


async def _read(database: Database, config: Config, venue: str, refresh: bool) -> InstrumentList:
    from qts.app import ChosenVenue
    from qts.domain import Instruments, SystemClock
    from qts.feed import InstrumentStore, InstrumentSync

    store, clock = InstrumentStore(database), SystemClock()
    if refresh:
        source = ChosenVenue.of(config, venue).instruments(clock)
        known = Instruments(await store.load(source.environment))
        await InstrumentSync(store, source, known, clock).refresh()
    return await store.newest(venue)


def _matching(known: Iterable[Instrument], venue: str, pattern: str | None) -> list[Instrument]:
    rows, word = list(known), (pattern or "").casefold()
    found = [
        each
        for each in rows
        if any(word in text.casefold() for text in (each.symbol, each.name, each.name_en))
    ]
    if pattern and not found:
        names = [text for each in rows for text in (each.symbol, each.name, each.name_en) if text]
        near = nearest_name(pattern, names)
        raise RefusedError(
            f"no instrument of {venue} matches {pattern!r}"
            + (f"; did you mean {near}?" if near else "; expected a part of a symbol or a name")
        )
    return found


def _line(each: Instrument) -> str:
    tick = format_number(each.ticks.size(each.base_price)) if each.base_price else "by price"
    tax = f"{format_number(each.sale_tax * 100)} %" if each.sale_tax else "-"
    minimum = format_number(each.min_order_value) if each.min_order_value else "-"
    names = " / ".join(dict.fromkeys(name for name in (each.name, each.name_en) if name))
    line = (
        f"{each.symbol:<12}{each.kind:<8}{each.board:<8}{tick:>12}{format_number(each.lot):>12}"
        f"{minimum:>9}{tax:>8}  {names}"
    )
    return f"{line}  {each.status}".rstrip()
