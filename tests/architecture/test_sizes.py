"""Files are short and modules are few: a new one says which it belongs to first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES, MODULES = 400, 400
SUFFIXES = {".py", ".pyi", ".sql", ".cpp", ".hpp", ".js", ".css", ".html"}
LONGER = {
    "src/qts/_native.pyi": "a C++ module has one stub",
    "src/qts/database/migrations/0016_accounts.sql": "an applied migration never changes",
    "src/qts/orders/queries.sql": "the statements of a package are in one file",
}


def too_long(root: Path) -> Iterator[str]:
    for path in sorted((*root.glob("src/**/*"), *root.glob("native/**/*"))):
        if path.suffix in SUFFIXES and len(path.read_text("utf-8").splitlines()) > LINES:
            yield path.relative_to(root).as_posix()


def test_files_are_short() -> None:
    assert list(too_long(ROOT)) == sorted(LONGER)


def test_modules_are_few() -> None:
    assert len(list(ROOT.glob("src/qts/**/*.py"))) <= MODULES


def test_a_long_file_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "src/qts"
    folder.mkdir(parents=True)
    (folder / "long.py").write_text("pass\n" * (LINES + 1))
    (folder / "short.py").write_text("pass\n" * LINES)
    assert list(too_long(tmp_path)) == ["src/qts/long.py"]
