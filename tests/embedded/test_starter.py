"""A forked process of QTS is what a new interpreter would be (tests/starter.py)."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import Any

import pytest

from tests.starter import CLONE, new_interpreter

PROBE = [sys.executable, "-m", "tests.embedded.probe", "a", "b c"]


def _seen(**options: Any) -> dict[str, Any]:
    ended = subprocess.run(PROBE, capture_output=True, text=True, input="words", **options)
    assert ended.returncode == 7, ended.stderr
    seen: dict[str, Any] = json.loads(ended.stdout)
    return seen


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"env": {"PATH": os.environ["PATH"], "TZ": "Asia/Seoul"}},
        {"env": {**os.environ, "PYTHONUNBUFFERED": "1"}, "umask": 0o027, "start_new_session": True},
    ],
    ids=["plain", "environment", "session"],
)
def test_a_forked_process_sees_what_a_new_one_sees(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    forked = _seen(**options)
    monkeypatch.setattr(subprocess.Popen, "_execute_child", new_interpreter)
    assert forked == _seen(**options)
    assert forked["parent"] == os.getpid()


def test_a_killed_process_is_reaped_by_the_one_that_asked_for_it() -> None:
    with subprocess.Popen(PROBE, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.kill()
    assert process.returncode == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def _describe(pipe: Connection) -> None:
    pipe.send((os.getppid(), "qts.app.app" in sys.modules, multiprocessing.current_process().name))
    sys.exit(3)


def test_a_process_of_multiprocessing_is_forked_and_gets_its_files() -> None:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_describe, args=(theirs,), name="lane")
    process.start()
    theirs.close()
    assert ours.recv() == (os.getpid(), platform.machine() in CLONE, "lane")
    process.join()
    assert process.exitcode == 3
