"""Options that say how to read a file of bars or ticks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
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


class FileOptions(msgspec.Struct, frozen=True):
    """How to read a file, as it was given."""

    mapping: str | None = None
    columns: str | None = None
    symbol: str | None = None
    timeframe: str | None = None
    tz: str | None = None

    def layout(self) -> FileLayout:
        """Return the options as one value; raise RefusedError for a mapping of another form."""
        from qts.feed import FileLayout

        columns = self.columns
        return FileLayout(
            mapping=parse_mapping(self.mapping or ""),
            columns=tuple(name.strip() for name in columns.split(",")) if columns else (),
            symbol=self.symbol,
            timeframe=Timeframe(self.timeframe) if self.timeframe else None,
            tz=self.tz,
        )

    def arguments(self) -> tuple[tuple[str, str | None], ...]:
        """Return the options with their names."""
        return (
            ("--map", self.mapping),
            ("--columns", self.columns),
            ("--symbol", self.symbol),
            ("--timeframe", self.timeframe),
            ("--tz", self.tz),
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
