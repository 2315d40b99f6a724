"""`qts dev simulate kis` and `qts data observe` as a user runs them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import zstandard

from qts.feed import FeedStatus, PatternRecord, read_records
from tests.venues.kis import KEY

QTS = (sys.executable, "-m", "qts")


class Simulated:
    """Running simulator, accessed over its control API."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, body: object = None, method: str | None = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/_control/{path}", data, method=method)  # noqa: S310 - our own
        with urllib.request.urlopen(request, timeout=60) as reply:  # noqa: S310 - our own
            content: bytes = reply.read()
            return content

    @property
    def counts(self) -> dict[str, Any]:
        """Requests of the key as the simulator counted them."""
        found: dict[str, Any] = json.loads(self.ask("stats"))["keys"][KEY.app_key]
        return found

    @property
    def symbols(self) -> list[str]:
        return self.ask("symbols").decode().split()

    def surge(self, symbol: str, percent: float, over_s: int = 1) -> None:
        values = {"what": "surge", "symbol": symbol, "percent": percent, "over_s": over_s}
        self.ask("market", values)


@contextmanager
def simulated(*options: str) -> Iterator[Simulated]:
    with subprocess.Popen(
        [*QTS, "dev", "simulate", "kis", *options], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        try:
            assert found, "the simulator did not start"
            yield Simulated(found[0])
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


class ProcessResult(NamedTuple):
    code: int
    states: list[FeedStatus]
    cpu: float  # cores
    rss_mb: float


class ObserveProcess:
    """Process of `qts data observe`; its output goes to a file."""

    def __init__(self, home: Path, settings: dict[str, str], *options: str) -> None:
        self.home = home
        home.mkdir(exist_ok=True)
        self._lines = home / f"lines-{time.monotonic_ns()}"
        self._started = time.monotonic()
        with self._lines.open("wb") as lines:
            self._process = subprocess.Popen(
                [*QTS, "data", "observe", *options],
                stdout=lines,
                env={**_plain_environment(), **settings, "QTS_HOME": str(home)},
            )
        self._left: ProcessResult | None = None

    @property
    def states(self) -> list[FeedStatus]:
        """Statuses so far; the last line may be incomplete."""
        whole = self._lines.read_bytes().rpartition(b"\n")[0]
        return [msgspec.json.decode(line, type=FeedStatus) for line in whole.splitlines()]

    @property
    def records(self) -> list[PatternRecord]:
        folder = self.home / "record"
        return (
            list(read_records(folder)) if folder.is_dir() and any(folder.glob("*.jsonl*")) else []
        )

    def until(self, condition: Any, seconds: float) -> None:
        """Wait until the last status meets the condition."""
        ends = time.monotonic() + seconds
        while not ((states := self.states) and condition(states[-1])):
            assert self._process.poll() is None, "it ended by itself"
            assert time.monotonic() < ends, f"not within {seconds} s: {states[-1:]}"
            time.sleep(0.05)  # between two reads of the file

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> ProcessResult:
        self._process.send_signal(signal.SIGINT)
        return self.wait()

    def wait(self) -> ProcessResult:
        _, status, used = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - self._started
        return ProcessResult(
            self._process.returncode,
            self.states,
            (used.ru_utime + used.ru_stime) / seconds,
            used.ru_maxrss / 1024,
        )

    def end(self) -> None:
        if self._process.returncode is None:
            self.kill()


@contextmanager
def observing(home: Path, settings: dict[str, str], *options: str) -> Iterator[ObserveProcess]:
    process = ObserveProcess(home, settings, *options)
    try:
        yield process
    finally:
        process.end()


def settings_for(venue: Simulated, folder: Path, **feed: object) -> dict[str, str]:
    """Return the environment of a feed that polls all symbols of the simulator."""
    symbols = folder / "symbols.txt"
    symbols.write_bytes(venue.ask("symbols"))
    values: dict[str, object] = {
        "venues__kis__app_key": KEY.app_key,
        "venues__kis__app_secret": KEY.app_secret,
        "venues__kis__url": venue.url,
        "venues__kis__limits__per_second": 18,
        "feed__symbols": symbols,
        "feed__always_open": "true",
        "feed__stream": "false",
    }
    return {f"QTS_{name.upper()}": str(value) for name, value in (values | feed).items()}


def files_containing(folder: Path, secret: str) -> list[Path]:
    """Return the files with the text in their content or name."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) >= 4  # records, token, ledger, locks
    return [path for path in files if secret in path.name or secret.encode() in _content(path)]


def _content(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".zst":
        return zstandard.ZstdDecompressor().stream_reader(data).read()
    return data


def _plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("QTS_")}
