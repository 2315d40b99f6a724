"""The commands `qts database status` and `migrate`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from qts.domain import Secret


def qts(home: Path, url: Secret, *arguments: str) -> subprocess.CompletedProcess[str]:
    settings = {"DATABASE_URL": url.reveal(), "QTS_HOME": str(home), "HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-m", "qts", "database", *arguments],
        env={"PATH": os.environ["PATH"], **settings},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_migrate_brings_an_empty_database_up_to_date(
    empty_database_url: Secret, tmp_path: Path
) -> None:
    before = qts(tmp_path, empty_database_url, "status", "--json")
    assert before.returncode == 0, before.stderr
    found = msgspec.json.decode(before.stdout)
    assert found["current"] == 0
    assert [row["version"] for row in found["pending"]] == list(range(1, found["latest"] + 1))

    first = qts(tmp_path, empty_database_url, "migrate")
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.startswith("applied 0001_schema_migration.sql\n")

    second = qts(tmp_path, empty_database_url, "migrate")
    assert second.stdout == "nothing to do: the schema is up to date\n"
    after = qts(tmp_path, empty_database_url, "status")
    assert after.stdout.startswith(f"schema {found['latest']} of {found['latest']}\n")


@pytest.mark.parametrize("command", ["status", "migrate"])
def test_an_unreachable_server_is_one_line_and_exit_code_1(tmp_path: Path, command: str) -> None:
    ended = qts(tmp_path, Secret("postgresql://me:canary@127.0.0.1:1/trades"), command)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr == (
        "qts: PostgreSQL at 127.0.0.1:1/trades is unreachable: connection refused\n"
    )


def test_a_url_that_is_not_understood_is_exit_code_2(tmp_path: Path) -> None:
    ended = qts(tmp_path, Secret("postgresql://me:can/ary@127.0.0.1:1/trades"), "status")
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert "ary" not in ended.stderr
