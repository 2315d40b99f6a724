"""Symbols to poll: from a file, or from the lists of KIS."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from qts.domain import RefusedError
from qts.feed import read_symbols


def test_symbols_are_read_once_each_without_comments(tmp_path: Path) -> None:
    file = tmp_path / "symbols.txt"
    file.write_text("# mine\n005930\n000660 # SK\n\n005930\n")
    assert read_symbols(file) == ["005930", "000660"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "holds no symbol"), ("../etc\n", "is not a symbol"), (None, "No such")],
)
def test_a_wrong_symbols_file_is_refused(tmp_path: Path, text: str | None, reason: str) -> None:
    file = tmp_path / "symbols.txt"
    if text is not None:
        file.write_text(text)
    with pytest.raises(RefusedError, match=reason):
        read_symbols(file)


def test_no_symbols_file_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"feed\.symbols is not set"):
        read_symbols(None)


def _row(code: str, name: str, kind: str, width: int) -> str:
    return f"{code:<9}KR7{code}003{name:<10}{kind}" + "0" * (width - 2) + "\n"


def test_stocks_of_the_lists_of_kis_are_read_and_other_products_left_out(tmp_path: Path) -> None:
    kospi = _row("005930", "삼성전자", "ST", 227) + _row("069500", "KODEX 200", "EF", 227)
    kosdaq = _row("247540", "에코프로비엠", "ST", 221) + _row("F70100026", "다올", "BC", 221)
    with zipfile.ZipFile(tmp_path / "kospi_code.mst.zip", "w") as archive:
        archive.writestr("kospi_code.mst", kospi.encode("cp949"))
    (tmp_path / "kosdaq_code.mst").write_bytes(kosdaq.encode("cp949"))
    assert read_symbols(tmp_path) == ["247540", "005930"]
    assert read_symbols(tmp_path / "kospi_code.mst.zip") == ["005930"]


def test_a_broken_archive_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "kospi_code.mst.zip"
    file.write_bytes(b"no archive")
    with pytest.raises(RefusedError, match=r"feed\.symbols, .*unreadable"):
        read_symbols(file)
