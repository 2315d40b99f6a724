"""The statements of this room: files in `sql/`, read once."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "sql"


class Queries:
    """One attribute per file, named as it is."""

    def __init__(self) -> None:
        self._texts = {path.stem: path.read_text("utf-8") for path in FOLDER.glob("*.sql")}

    def __getattr__(self, name: str) -> str:
        try:
            return self._texts[name]
        except KeyError:
            raise AttributeError(f"sql/{name}.sql is missing") from None


SQL = Queries()
