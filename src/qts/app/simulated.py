"""The market when there is no key: the KIS simulator in a process of its own."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Self

import msgspec

from qts.config import Config
from qts.config.demo import DemoConfig
from qts.domain import Secret, ServerFailed
from qts.embedded import Home
from qts.embedded.child import Launch, spawn, stop
from qts.feed import FeedConfig
from qts.pipeline import PipelineConfig
from qts.simulators import KisKey
from qts.venues import KisConfig, LimitsConfig

START_S = 30.0
_PER_SECOND, _PER_MINUTE, _PER_DAY = 18, 1000, 1_000_000
_PARAMS = (
    "surge_breakout.window=3",
    "surge_breakout.margin=0.004",
    "surge_breakout.volume_ratio=1",
    "moving_average_swing.fast=2",
    "moving_average_swing.slow=4",
    "moving_average_swing.margin=0.001",
    "rsi_scalper.length=4",
    "rsi_scalper.low=25",
    "rsi_scalper.high=75",
)
_FOUND = re.compile(r"(http://\S+) +(ws://\S+)")


def is_wanted(config: Config) -> bool:
    """No key and no host: nothing real can be meant."""
    return config.venues.kis.app_key is None and config.venues.kis.url is None


class Simulated:
    """Use as a context; `kis` and `feed` are the settings that lead to it."""

    def __init__(self, home: Home, config: DemoConfig) -> None:
        self._home = home
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self.url = self.stream_url = ""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def __enter__(self) -> Self:
        log = self._home.log / "simulator.log"
        log.write_bytes(b"")
        shutil.rmtree(self.keys, ignore_errors=True)
        self.keys.mkdir(mode=0o700)
        config = self._config
        options = {
            "--port": config.port,
            "--seed": config.seed,
            "--symbols": config.symbols,
            "--speed": config.speed,
            "--limits": f"{_PER_SECOND}/{_PER_MINUTE}/{_PER_DAY}",
        }
        argv = [sys.executable, "-m", "qts", "simulate", "kis"]
        argv += [word for name, value in options.items() for word in (name, str(value))]
        self._process = spawn(Launch(argv=argv, log=log, death_signal=signal.SIGKILL))
        try:
            self._wait(log)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            stop(self._process, ((signal.SIGINT, 5.0),))
            self._process = None

    def kis(self, other: KisConfig) -> KisConfig:
        key = KisKey()
        return msgspec.structs.replace(
            other,
            app_key=Secret(key.app_key),
            app_secret=Secret(key.app_secret),
            account=Secret(key.account),
            hts_id=Secret(key.hts_id),
            url=self.url,
            stream_url=self.stream_url,
            limits=LimitsConfig(per_second=_PER_SECOND, per_minute=_PER_MINUTE, per_day=_PER_DAY),
        )

    def feed(self, other: FeedConfig) -> FeedConfig:
        """All symbols of the simulator, whatever the calendar says."""
        with urllib.request.urlopen(f"{self.url}/_control/symbols", timeout=10) as reply:  # noqa: S310 - our own child
            symbols = reply.read()
        path: Path = self._home.path / "simulator.symbols"
        path.write_bytes(symbols)
        return msgspec.structs.replace(
            other,
            symbols=path,
            always_open=True,
            interval_s=self._config.scan_s,
            record_dir=other.record_dir or self._home.path / "record",
        )

    @staticmethod
    def pipeline(other: PipelineConfig) -> PipelineConfig:
        """The strategies that ship, with lengths for a short look, unless others are set."""
        if other.strategies:
            return other
        return msgspec.structs.replace(
            other,
            strategies=(
                "qts.strategies:SurgeBreakout",
                "qts.strategies:MovingAverageSwing",
                "qts.strategies:RsiScalper",
            ),
            params=(*_PARAMS, *other.params),
        )

    @property
    def keys(self) -> Path:
        """Where the key's token and its counted requests lie: gone with the simulator."""
        return self._home.path / "simulator"

    def _wait(self, log: Path) -> None:
        end = time.monotonic() + START_S
        while self._process is not None:
            text = log.read_text("utf-8", errors="replace")
            if found := _FOUND.search(text):
                self.url, self.stream_url = found[1], found[2]
                return
            if self._process.poll() is not None or time.monotonic() > end:
                last = (text.strip().splitlines() or ["it said nothing"])[-1]
                raise ServerFailed(f"the simulator did not start: {last}; see {log}")
            time.sleep(0.02)
