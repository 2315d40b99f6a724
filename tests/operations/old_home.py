"""A home of QTS 0.1.0: its database, settings, files, and the figures that it showed of them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import asyncpg

from qts.config import resolve
from qts.domain import RefusedError, Secret

FOLDER = Path(__file__).parent / "fixtures" / "v0_1_0"
FIGURES: dict[str, Any] = json.loads((FOLDER / "figures.json").read_text())
_RENAMED = re.compile(r":(\d+): unknown key (\S+); it was renamed to (\S+)")


async def load_database(url: Secret) -> None:
    """Create the tables and rows of 0.1.0 in an empty database."""
    connection = await asyncpg.connect(url.reveal())
    try:
        await connection.execute((FOLDER / "database.sql").read_text())
    finally:
        await connection.close()


def copy_files(home: Path) -> None:
    """Copy the files of the home beside its database."""
    home.mkdir(mode=0o700, exist_ok=True)
    shutil.copytree(FOLDER / "home", home, dirs_exist_ok=True)
    home.chmod(0o700)
    (home / "dashboard.json").chmod(0o600)


def renamed(file: Path) -> dict[str, str]:
    """Replace each key that the settings refuse by the new name in its error; return the names."""
    try:
        resolve(file, {})
    except RefusedError as error:
        problems = str(error).splitlines()
    else:
        return {}
    lines, names = file.read_text().splitlines(), {}
    for problem in problems:
        found = _RENAMED.search(problem)
        assert found, problem
        number, old, new = int(found[1]) - 1, found[2], found[3]
        before, after = old.rpartition(".")[2], new.rpartition(".")[2]
        lines[number] = re.sub(rf"\b{before}\b", after, lines[number], count=1)
        names[old] = new
    file.write_text("\n".join(lines) + "\n")
    return names


def difference(old: Any, new: Any, where: str = "") -> list[str]:
    """Return where an answer lacks what 0.1.0 answered; new fields are no difference."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key, value in old.items()
            for line in difference(value, new.get(key, "missing"), f"{where}.{key}")
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = zip(old, new, strict=True)
        return [
            line for at, (a, b) in enumerate(pairs) for line in difference(a, b, f"{where}[{at}]")
        ]
    return [] if old == new else [f"{where}: {old!r} was, {new!r} is"]
