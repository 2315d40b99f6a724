"""Where a command's JSON goes: a file, checked before the work starts, or standard output."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import typer

from qts.domain import RefusedError


class JsonFile:
    """`--json FILE`: refused at once when it could not be written at the end; - prints."""

    def __init__(self, name: str | None) -> None:
        self.prints = name == "-"
        self._path = Path(name) if name and not self.prints else None
        if self._path and (self._path.is_dir() or not os.access(self._path.parent, os.W_OK)):
            raise RefusedError(
                f"--json {name}: cannot be written; name a file in a directory that can"
            )

    def write(self, value: object) -> None:
        text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
        if self.prints:
            typer.echo(text)
        elif self._path:
            self._path.write_text(text + "\n", encoding="utf-8")
