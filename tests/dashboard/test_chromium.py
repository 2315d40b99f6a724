"""How a Chromium is found, and what is reported where there is none."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from tests.dashboard.chromium import VERSION, NotFoundError, TamperedError, find


@pytest.fixture(autouse=True)
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ordinary user on x86-64 Linux with nothing on the PATH; returns the PATH's one folder."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return programs


def look() -> object:
    return find.__wrapped__()


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def unpacked(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "cache/qts").iterdir() if path.is_dir()]


def test_one_on_the_path_comes_first(empty_machine: Path) -> None:
    program(empty_machine, "chromium", "exit 0")
    found = look()
    assert getattr(found, "executable", None) == empty_machine / "chromium"


def test_without_npm_the_reason_is_given(tmp_path: Path) -> None:
    found = look()
    assert isinstance(found, NotFoundError)
    assert str(found) == "npm and node are not on the PATH"
    assert unpacked(tmp_path) == []


def test_an_npm_that_fails_is_a_reason(tmp_path: Path, empty_machine: Path) -> None:
    program(empty_machine, "node", "exit 1")
    program(empty_machine, "npm", "echo 'npm error code ENOTFOUND' >&2; exit 1")
    found = look()
    assert isinstance(found, NotFoundError)
    assert str(found) == "npm: npm error code ENOTFOUND"
    assert unpacked(tmp_path) == []


def test_a_package_that_is_not_the_pinned_one_is_an_error(
    tmp_path: Path, empty_machine: Path
) -> None:
    program(empty_machine, "node", "exit 0")
    program(empty_machine, "npm", "echo other > package.tgz")
    with pytest.raises(TamperedError, match="not jiGWqSv"):
        look()
    assert unpacked(tmp_path) == []


def test_an_unpacked_one_that_does_not_start_is_no_chromium(tmp_path: Path) -> None:
    folder = tmp_path / "cache/qts" / f"chromium-{VERSION}"
    folder.mkdir(parents=True)
    program(folder, "chromium", "echo 'libnss3.so: cannot open' >&2; exit 127")
    found = look()
    assert isinstance(found, NotFoundError)
    assert str(found) == "chromium: libnss3.so: cannot open"


def test_other_machines_have_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    found = look()
    assert isinstance(found, NotFoundError)
    assert "x86-64" in str(found)
