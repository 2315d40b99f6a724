"""Options of `qts backtest`, and the command line that repeats a backtest."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer
from msgspec.structs import replace

from qts.cli.file_layout import FileOptions
from qts.domain import Market, RefusedError, SystemClock, Timeframe, assumed_instrument

if TYPE_CHECKING:
    from qts.backtest import BacktestConfig, BarTape, DataSelection, Tape
    from qts.pipeline import StrategyConfig

Way = Literal["auto", "compiled", "generic"]
Venue = Literal["auto", "kis", "upbit"]
Volume = Literal["auto", "day", "tick"]

# Settings that shape a backtest; given in the environment, they are part of the command.
_SETTINGS = ("RISK__LIMITS__", "RISK__STOPS__", "BROKERS__PAPER__", "BROKERS__COSTS__")
_MORE_SETTINGS = (
    "PIPELINE__INTERVAL_MS",
    "PIPELINE__SIGNAL_TTL_S",
    "PIPELINE__FILL_TIMEOUT_S",
    "PIPELINE__STRATEGIES",
    "PIPELINE__PARAMS",
    "STRATEGY",
)

StrategyArgument = Annotated[
    str,
    typer.Argument(
        metavar="STRATEGY",
        help="rsi_scalper, module:Class, path.py:Class, or the name of a [[strategy]]; all: every"
        " strategy of the settings.",
    ),
]
DataArgument = Annotated[
    Path | None,
    typer.Argument(metavar="DATA", help="Records, or files of ticks or bars: .csv, .parquet."),
]
AlsoOption = Annotated[
    list[str] | None,
    typer.Option("--also", metavar="STRATEGY", help="One more strategy; repeatable."),
]
ParamOption = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="NAME=VALUE",
        help="A parameter, with several strategies KEY.NAME=VALUE; repeatable.",
    ),
]
BarsOption = Annotated[
    Literal["1s", "1m", "3m", "5m", "15m", "1h", "1d"] | None,
    typer.Option("--bars", help="Bars of the catalogue instead of DATA; see qts data list."),
]
SymbolsOption = Annotated[
    str | None,
    typer.Option(
        "--symbols",
        metavar="A,B|FILE|N",
        help="Only these symbols; with --simulated-day, how many (1 to 4000).",
    ),
]
FromOption = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help="2026-10-01, '30 days ago', yesterday."),
]
ToOption = Annotated[
    str | None, typer.Option("--to", metavar="TIME", help="As --from, exclusive; default: the end.")
]
SeedOption = Annotated[
    int | None,
    typer.Option("--simulated-day", metavar="SEED", min=0, help="A simulated day instead of DATA."),
]
SecondsOption = Annotated[int, typer.Option(min=1, max=23_400, help="Length of the simulated day.")]
VolumeOption = Annotated[
    Volume, typer.Option(help="Whether DATA has the day's cumulative volume or that of each tick.")
]
CashOption = Annotated[
    str | None, typer.Option(metavar="WON", help="Initial cash; default brokers.paper.cash.")
]
StopsOption = Annotated[
    bool, typer.Option("--stops/--no-stops", help="Whether stops close positions.")
]
LatencyOption = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=60_000,
        metavar="MS",
        help="Before an order can trade; 0: on its own tick. Bars: their next open, always.",
    ),
]
CallLimitOption = Annotated[
    float,
    typer.Option(
        "--call-limit", min=0.1, max=86_400, metavar="S", help="Longest call of a strategy."
    ),
]
InstrumentsOption = Annotated[
    Path | None,
    typer.Option(
        "--instruments",
        metavar="FILE",
        help="Lots, ticks and taxes: a file of qts data instruments --json, or KIS master files.",
    ),
]
VenueOption = Annotated[
    Venue,
    typer.Option(
        help="Rules of symbols without an instrument: KRX stocks, Upbit coins, or by their form."
    ),
]
HtmlOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with plots.")]


class BacktestOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options that shape the result of a backtest, as they were given."""

    strategies: tuple[str, ...]
    data: Path | None
    bars: str | None
    symbols: str | None
    start: str | None
    end: str | None
    file: FileOptions
    cash: str | None
    stops: bool
    call_limit: float
    instruments: Path | None
    venue: Venue
    config: Path | None
    params: tuple[str, ...] = ()
    seed: int | None = None  # of a simulated day
    seconds: int = 0
    volume: Volume = "auto"
    latency: float | None = None
    way: Way = "auto"

    def instances(self) -> tuple[StrategyConfig, ...]:
        """Return the strategies with their parameters: classes, or instances of the settings."""
        from qts.config import load
        from qts.pipeline import select_instances

        settings = load(self.config, os.environ)
        found = select_instances(self.strategies, settings.pipeline, settings.strategy)
        params: dict[str, dict[str, str]] = {each.name: {} for each in found}
        for line in self.params:
            name, sign, value = line.partition("=")
            if not sign or not name:
                raise RefusedError(f"--param {line!r}: expected NAME=VALUE, such as length=20")
            key, dot, rest = name.strip().partition(".")
            if not dot and len(found) == 1:
                key, rest = found[0].name, key
            if key not in params or not rest:
                raise RefusedError(
                    f"--param {line!r}: expected KEY.NAME=VALUE with a KEY of {', '.join(params)}"
                )
            params[key][rest] = value.strip()
        return tuple(
            replace(each.with_parameters(params[each.name]), source=_absolute_strategy(each.source))
            for each in found
        )

    @property
    def home(self) -> Path:
        from qts.app import resolve_home
        from qts.config import load

        return resolve_home(load(self.config, os.environ)).path

    def read_tape(self, chosen: DataSelection) -> tuple[Tape | BarTape, str, DataSelection]:
        """Return the data, where it is from, and what a repetition reads: no later bars."""
        from qts.backtest import BarTape, select_tape

        tape, source = select_tape(chosen, self.home)
        if isinstance(tape, BarTape) and self.bars and len(tape.rows):  # the catalogue may grow
            until = max(tape.rows["at"].max(), chosen.start)
            chosen = replace(chosen, symbols=tuple(tape.symbols), end=min(chosen.end, float(until)))
        return tape, source, chosen

    def select_data(self) -> DataSelection:
        """Return what is to be read, with times and symbols resolved."""
        from qts.backtest import DataSelection

        size, symbols = (2500, self.seconds), None
        if self.seed is not None and self.symbols is not None:
            size = (self._count(), self.seconds)
        elif self.symbols is not None:
            symbols = self._listed(self.symbols)
        times = [self._moment(text, symbols) for text in (self.start, self.end)]
        return DataSelection(
            data=self.data,
            bars=Timeframe(self.bars) if self.bars else None,
            seed=self.seed,
            size=size,
            symbols=symbols,
            start=-float("inf") if times[0] is None else times[0],
            end=float("inf") if times[1] is None else times[1],
            venue=self.venue,
            volume=self.volume,
            layout=self.file.layout(),
        )

    def _count(self) -> int:
        text = self.symbols or ""
        if not text.isdecimal() or not 1 <= int(text) <= 4000:
            raise RefusedError(
                f"--symbols {text!r}: expected how many symbols the simulated day has, 1 to 4000"
            )
        return int(text)

    def _listed(self, text: str) -> tuple[str, ...]:
        from qts.feed import read_symbols

        path = Path(text)
        if len(text) < 256 and path.is_file():
            return tuple(read_symbols(path))
        found = tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
        if not found:
            raise RefusedError(f"--symbols {text!r}: expected symbols, as in 005930,000660")
        return found

    def _moment(self, text: str | None, symbols: tuple[str, ...] | None) -> float | None:
        """Return a time; without a zone it is one of the market: Seoul, for Upbit UTC."""
        from qts.feed import SEOUL
        from qts.history import parse_moment
        from qts.venues import market_of_venue

        if text is None:
            return None
        markets = {assumed_instrument(symbol).market for symbol in symbols or ()}
        market = None if self.venue == "auto" else market_of_venue(self.venue)
        is_upbit = market is Market.UPBIT or markets == {Market.UPBIT}
        return parse_moment(text, UTC if is_upbit else SEOUL, SystemClock().now())

    def settings(self) -> BacktestConfig:
        """Return limits, stops, costs and the paper broker's behaviour of the settings."""
        from qts.app import backtest_config
        from qts.config import load

        settings = load(self.config, os.environ)
        usual, cash = backtest_config(settings), self.cash
        usual_ms = usual.paper.latency_ms
        try:
            initial = Decimal(cash.replace(",", "").replace("_", "")) if cash else None
        except InvalidOperation:
            raise RefusedError(f"--cash {cash!r} is not a number of won") from None
        latency_ms = usual_ms if self.latency is None else self.latency
        return replace(
            usual,
            cash=Decimal(settings.brokers.paper.cash) if initial is None else initial,
            use_stops=self.stops,
            paper=replace(usual.paper, latency_ms=latency_ms),
            call_limit_s=self.call_limit,
        )

    def arguments(self, chosen: DataSelection) -> tuple[str, ...]:
        """Return the arguments of the same backtest, for another directory and another day."""
        first, *others = (_absolute_strategy(name) for name in self.strategies)
        arguments = [first, *([str(self.data.resolve())] if self.data else [])]
        repeated = [("--also", name) for name in others] + [("--param", p) for p in self.params]
        symbols = ",".join(chosen.symbols) if chosen.symbols else self.symbols
        options: list[tuple[str, object]] = [
            *repeated,
            ("--bars", self.bars),
            ("--symbols", symbols),
            ("--from", _iso(chosen.start)),
            ("--to", _iso(chosen.end)),
            ("--simulated-day", self.seed),
            ("--seconds", self.seconds if self.seed is not None else None),
            ("--volume", self.volume if self.volume != "auto" else None),
            *self.file.arguments(),
            ("--cash", self.cash),
            ("--latency", self.latency),
            ("--call-limit", self.call_limit),
            ("--instruments", _absolute(self.instruments)),
            ("--venue", self.venue if self.venue != "auto" else None),
            ("--way", self.way if self.way != "auto" else None),
            ("--config", _absolute(self.config)),
        ]
        for option, value in options:
            if value is not None:
                arguments += [option, str(value)]
        return (*arguments, "--stops" if self.stops else "--no-stops")

    def command(
        self, chosen: DataSelection, environ: Mapping[str, str], subcommand: str = "backtest"
    ) -> str:
        """Return the line that repeats the command, with the settings of the environment."""
        names = [
            name
            for name in sorted(environ)
            if name.removeprefix("QTS_").startswith((*_SETTINGS, *_MORE_SETTINGS))
            or name in ("QTS_HOME", "QTS_CONFIG")
        ]
        words = (f"{name}={environ[name]}" for name in names)
        return shlex.join((*words, "qts", subcommand, *self.arguments(chosen)))


def _absolute_strategy(name: str) -> str:
    where, colon, kind = name.rpartition(":")
    return f"{Path(where).resolve()}:{kind}" if colon and where.endswith(".py") else name


def _absolute(path: Path | None) -> Path | None:
    return path.resolve() if path else None


def _iso(at: float) -> str | None:
    return None if abs(at) == float("inf") else datetime.fromtimestamp(at, UTC).isoformat()
