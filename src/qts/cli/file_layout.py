"""Options that say how to read a file of bars or ticks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from qts.domain import RefusedError, Timeframe

if TYPE_CHECKING:
    from qts.feed import FileLayout

MapOption = Annotated[
    str | None,
    typer.Option(
        "--map",
        metavar="FIELD=COLUMN,…",
        help="Columns of a file, as in time=Date,price=Last; usual names are recognised.",
    ),
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(
        "--columns", metavar="A,B,…", help="Names of the columns of a CSV without header."
    ),
]
FileSymbolOption = Annotated[
    str | None,
    typer.Option(
        "--symbol", metavar="SYMBOL", help="Symbol of a file without one; {file}: the file's name."
    ),
]
TimeframeOption = Annotated[
    Literal["1s", "1m", "3m", "5m", "15m", "1h", "1d"] | None,
    typer.Option("--timeframe", help="Length of the bars of a file."),
]
ZoneOption = Annotated[
    str | None,
    typer.Option("--tz", metavar="ZONE", help="Time zone of times without one: Asia/Seoul."),
]


def file_layout(
    mapping: str | None,
    columns: str | None,
    symbol: str | None,
    timeframe: str | None,
    tz: str | None,
) -> FileLayout:
    """Return the options as one value; raise RefusedError for a mapping of another form."""
    from qts.feed import FileLayout

    return FileLayout(
        mapping=parse_mapping(mapping or ""),
        columns=tuple(name.strip() for name in columns.split(",")) if columns else (),
        symbol=symbol,
        timeframe=Timeframe(timeframe) if timeframe else None,
        tz=tz,
    )


def parse_mapping(text: str) -> dict[str, str]:
    found = {}
    for part in filter(None, text.split(",")):
        field, sign, column = part.partition("=")
        if not sign or not field.strip() or not column.strip():
            raise RefusedError(
                f"--map {part!r}: expected FIELD=COLUMN, as in time=Date; for two columns "
                "time=Date+Time"
            )
        found[field.strip().lower()] = column.strip()
    return found
