"""What systemd hears of a run."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from qts.app.supervision import sd_notify, watchdog_s
from qts.brokers import AccountTakenError
from qts.domain import QtsError, RefusedError
from tests.cli.test_run import Qts

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = [DEPLOY / "qts.service", DEPLOY / "qts-standby.service"]


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(60)
        yield listener


def test_without_systemd_nothing_is_said() -> None:
    assert not sd_notify("READY=1", {})
    assert not sd_notify("READY=1", {"NOTIFY_SOCKET": "not a path"})
    assert not sd_notify("READY=1", {"NOTIFY_SOCKET": "/nowhere/at/all"})


def test_a_socket_without_a_file_is_reached_too() -> None:
    if not hasattr(socket, "AF_UNIX") or os.uname().sysname != "Linux":
        return
    name = f"qts-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}")
        assert sd_notify("READY=1", {"NOTIFY_SOCKET": f"@{name}"})
        assert listener.recv(100) == b"READY=1"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_fed_twice_in_its_time(
    environ: dict[str, str], expected: float | None
) -> None:
    assert watchdog_s(environ) == expected


def test_a_run_says_ready_beats_and_says_stopping(systemd: socket.socket, tmp_path: Path) -> None:
    run = Qts(
        tmp_path / "home",
        "run",
        "--servers-only",
        NOTIFY_SOCKET=systemd.getsockname(),
        WATCHDOG_USEC="200000",
    )
    try:
        messages: list[str] = []
        while not any("READY=1" in each for each in messages):
            messages.append(systemd.recv(1000).decode())
        beats = 0
        while beats < 3:
            beats += systemd.recv(1000) == b"WATCHDOG=1"
        run.process.send_signal(signal.SIGTERM)
        while "STOPPING=1" not in messages:
            messages.append(systemd.recv(1000).decode())
        assert run.end() == 0
    finally:
        run.close()
    assert "READY=1\nSTATUS=servers run; nothing is traded" in messages


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_the_unit_asks_for_what_a_run_gives(path: Path) -> None:
    unit = path.read_text()
    assert re.search(r"^Type=notify$", unit, re.MULTILINE)
    assert re.search(r"^WatchdogSec=\d+", unit, re.MULTILINE)
    assert re.search(r"^NotifyAccess=main$", unit, re.MULTILINE)
    assert re.search(r"^KillMode=mixed$", unit, re.MULTILINE)
    assert re.search(r"^User=qts$", unit, re.MULTILINE)
    stop = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert stop is not None
    assert int(stop[1]) >= 60  # orders settle, positions are reconciled, PostgreSQL stops


@pytest.mark.parametrize(
    ("unit", "ended", "is_started_again"),
    [
        ("qts.service", None, False),
        ("qts.service", AccountTakenError, True),  # once: while another run trades, it is refused
        ("qts.service", RefusedError, False),
        ("qts-standby.service", None, True),
        ("qts-standby.service", AccountTakenError, True),
        ("qts-standby.service", RefusedError, False),
    ],
)
def test_the_unit_starts_a_run_again_that_can_trade_or_stand_by(
    unit: str, ended: type[QtsError] | None, is_started_again: bool
) -> None:
    code = 0 if ended is None else ended.exit_code
    found = dict(re.findall(r"^(Restart\w*)=(.*)$", (DEPLOY / unit).read_text(), re.MULTILINE))
    prevented = {int(each) for each in found["RestartPreventExitStatus"].split()}
    is_restarted = found["Restart"] == "always" or (found["Restart"] == "on-failure" and code != 0)
    assert (is_restarted and code not in prevented) is is_started_again


@pytest.mark.parametrize("path", [*UNITS, DEPLOY / "qts-nats.service"], ids=lambda path: path.stem)
def test_systemd_itself_understands_the_unit(path: Path) -> None:
    """Needs systemd-analyze; its messages about the missing program and user are expected."""
    try:
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(path)],  # noqa: S607 - the machine's own
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except FileNotFoundError:
        return
    wrong = ("Unknown key", "Failed to parse", "Unknown section", "Invalid")
    assert [line for line in done.stderr.splitlines() if any(word in line for word in wrong)] == []
