"""What `qts run` prints on a terminal: the start-up table first, then readable log lines."""

from __future__ import annotations

import json
import os
import pty
import re
import sys
from pathlib import Path

import pytest

from tests.acceptance.runs import INTERPRETED

LOG_LINE = re.compile(r"^\d\d:\d\d:\d\d \[(info|warning|error)\s*\] ", re.MULTILINE)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")

HELD = """
import sys
from qts import telemetry
telemetry.configure(telemetry.TelemetryConfig())
log = telemetry.logger("test")
telemetry.hold_lines()
log.info("first")
if "error" in sys.argv:
    log.error("broken")
print("table", file=sys.stderr, flush=True)
if "release" in sys.argv:
    telemetry.release_lines()
log.info("last")
telemetry.shutdown()
"""


def on_terminal(*arguments: str, **environ: str) -> tuple[int, str]:
    """Run Python with standard output and error on one terminal; return exit code and output."""
    pid, terminal = pty.fork()
    if pid == 0:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("QTS_")}
        os.execve(  # noqa: S606 - no shell is wanted
            sys.executable, [sys.executable, *arguments], {**kept, "TERM": "xterm", **environ}
        )
    output = b""
    while True:
        try:
            block = os.read(terminal, 65_536)
        except OSError:  # the other end is closed
            break
        output += block
    os.close(terminal)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, COLOUR.sub("", output.decode()).replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("release", ["table", "first", "last"]),
        ("end", ["table", "first", "last"]),
        ("error", ["first", "broken", "table", "last"]),
    ],
)
def test_held_lines_are_written_in_order(how: str, expected: list[str]) -> None:
    code, output = on_terminal("-c", HELD, how)
    assert code == 0
    assert re.findall(r"\b(table|first|last|broken)\b", output) == expected
    assert len(LOG_LINE.findall(output)) == len(expected) - 1


def test_lines_are_not_held_where_there_is_no_terminal(tmp_path: Path) -> None:
    log = tmp_path / "log"
    on_terminal("-c", f"import os, sys; sys.stderr = open({str(log)!r}, 'w')\n" + HELD, "release")
    lines = log.read_text().splitlines()
    assert [json.loads(line)["event"] for line in (lines[0], lines[2])] == ["first", "last"]
    assert lines[1] == "table"


@pytest.mark.parametrize("log_format", ["json", pytest.param("auto", marks=pytest.mark.soak)])
def test_the_table_of_a_run_comes_first(log_format: str, tmp_path: Path) -> None:
    code, output = on_terminal(
        *("-m", "qts", "run", "--duration", "1s"),
        **INTERPRETED,
        QTS_HOME=str(tmp_path / "home"),
        QTS_DASHBOARD__ENABLED="false",
        QTS_TELEMETRY__LOG_FORMAT=log_format,
    )
    assert code == 0, output
    before, _, after = output.partition("Ready after")
    json_lines = re.compile(r"^\{.*\}$", re.MULTILINE)
    assert "postgres" in before
    assert LOG_LINE.findall(before) == json_lines.findall(before) == []
    readable, structured = LOG_LINE.findall(after), json_lines.findall(after)
    assert structured == [] if log_format == "auto" else readable == []
    assert readable or [json.loads(line)["event"] for line in structured]
