"""The venue of a run without an API key: a simulator in a separate process."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Literal, Self

import msgspec

from qts.brokers import account_key
from qts.config import Config
from qts.config.schema import SimulatorConfig
from qts.database import Database
from qts.domain import AccountKey, RefusedError, Secret, ServerFailedError
from qts.embedded import Home
from qts.embedded.process import Launch, spawn, stop
from qts.feed import FeedConfig
from qts.pipeline import PipelineConfig
from qts.simulators import KisKey, UpbitKey
from qts.venues import KisConfig, RateLimitConfig, UpbitConfig

START_TIMEOUT_S = 30.0
UPBIT_MARKETS = 200  # the most that one request takes
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
_HOLDS = "SELECT EXISTS (SELECT FROM position WHERE broker = $1 AND account = $2 AND quantity <> 0)"
_LOCAL = "http://127.0.0.1"
_FOUND = re.compile(r"(http://\S+) +(ws://\S+)")


def uses_simulated_venue(config: Config) -> bool:
    """Return whether the settings name neither key nor host; Upbit's quotes need `enabled` off."""
    kis, upbit = config.venues.kis, config.venues.upbit
    if not config.simulator.enabled:
        return False
    if config.feed.venue == "upbit":
        return upbit.access_key is None and upbit.url == UpbitConfig().url
    return kis.app_key is None and kis.url is None


def run_account(config: Config) -> AccountKey:
    """Return the account that a run with these settings trades, simulated or not."""
    venues = config.venues
    if uses_simulated_venue(config):
        venues = msgspec.structs.replace(
            venues,
            kis=msgspec.structs.replace(venues.kis, url=_LOCAL, account=Secret(KisKey().account)),
            upbit=msgspec.structs.replace(venues.upbit, url=_LOCAL),
        )
    return account_key(config.brokers, venues)


async def refuse_stale_positions(database: Database, key: AccountKey) -> None:
    """Refuse a ledger with positions: a simulated account starts empty in every run."""
    if await database.fetchval(_HOLDS, *key):
        raise RefusedError(
            f"the ledger has positions at {key.broker}, and its simulator starts empty in every "
            'run; set brokers.broker = "paper", or another home'
        )


class SimulatedVenue:
    """Context manager of the simulator process; `settings` point a run at it."""

    def __init__(
        self,
        home: Home,
        config: SimulatorConfig,
        venue: Literal["kis", "upbit"] = "kis",
        *,
        takes_orders: bool = False,
    ) -> None:
        self._home = home
        # Orders are dated by the simulator's clock, and searched for by ours.
        self._config = msgspec.structs.replace(config, speed=1.0) if takes_orders else config
        self._venue = venue
        self._takes_orders = takes_orders
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
        argv = [sys.executable, "-m", "qts", "simulate", self._venue]
        argv += [word for option in self._options().items() for word in map(str, option)]
        if self._takes_orders and self._venue == "kis":
            argv.append("--always-open")
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

    def _options(self) -> dict[str, object]:
        config = self._config
        options = {"--port": config.port, "--seed": config.seed, "--speed": config.speed}
        if self._venue == "upbit":
            return {**options, "--symbols": min(config.symbols, UPBIT_MARKETS)}
        limits = f"{_PER_SECOND}/{_PER_MINUTE}/{_PER_DAY}"
        return {**options, "--symbols": config.symbols, "--limits": limits}

    def settings(self, other: Config) -> Config:
        """Return `other` with the venue, feed and strategies of this simulator."""
        venues = other.venues
        return msgspec.structs.replace(
            other,
            venues=msgspec.structs.replace(venues, upbit=self.upbit(venues.upbit))
            if self._venue == "upbit"
            else msgspec.structs.replace(venues, kis=self.kis(venues.kis)),
            feed=self.feed(other.feed),
            pipeline=self.pipeline(other.pipeline),
        )

    def upbit(self, other: UpbitConfig) -> UpbitConfig:
        key = UpbitKey()
        return msgspec.structs.replace(
            other,
            access_key=Secret(key.access_key),
            secret_key=Secret(key.secret_key),
            url=self.url,
            stream_url=f"{self.stream_url}/websocket/v1",
        )

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
            limits=RateLimitConfig(
                per_second=_PER_SECOND, per_minute=_PER_MINUTE, per_day=_PER_DAY
            ),
        )

    def feed(self, other: FeedConfig) -> FeedConfig:
        """Return feed settings for all symbols of the simulator, open at any time."""
        with urllib.request.urlopen(f"{self.url}/_control/symbols", timeout=10) as reply:  # noqa: S310 - our own child
            symbols = reply.read()
        path: Path = self._home.path / "simulator.symbols"
        path.write_bytes(symbols)
        return msgspec.structs.replace(
            other,
            symbols=path,
            always_open=True,
            interval_s=None if self._venue == "upbit" else self._config.scan_s,
            record_dir=other.record_dir or self._home.path / "record",
        )

    @staticmethod
    def pipeline(other: PipelineConfig) -> PipelineConfig:
        """Return the built-in strategies with short windows, unless others are set."""
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
        """Folder of the token and the usage log; removed at every start."""
        return self._home.path / "simulator"

    def _wait(self, log: Path) -> None:
        end = time.monotonic() + START_TIMEOUT_S
        while self._process is not None:
            text = log.read_text("utf-8", errors="replace")
            if found := _FOUND.search(text):
                self.url, self.stream_url = found[1], found[2]
                return
            if self._process.poll() is not None or time.monotonic() > end:
                last = (text.strip().splitlines() or ["no output"])[-1]
                raise ServerFailedError(f"the simulator did not start: {last}; see {log}")
            time.sleep(0.02)
