"""Record of the day: its prices, and the backtest of a run over it from the account as it was."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from qts.backtest import BacktestConfig, BacktestResult, Chunk, Opening, Tape, run_backtest
from qts.domain import ExitLevels, Fill, Instruments, RefusedError, Side
from qts.explain.ledger import DayLedger, DayOrder
from qts.pipeline import JournaledRun, JournalHeader, ParamsChange, SignalOutcome
from qts.strategies import Strategy, load_strategy, source_digest


def settings_of(header: JournalHeader) -> BacktestConfig:
    """Return the settings of a run's backtest; raise RefusedError for a run of earlier versions."""
    when = f"the run of {header.began:%Y-%m-%d %H:%M:%S} UTC"
    if not header.settings:
        raise RefusedError(
            f"the journal of {when} has no settings: an earlier version of QTS wrote it; days"
            " that this version runs can be explained"
        )
    try:
        found = msgspec.convert(header.settings, BacktestConfig)
        return replace(found, instances=header.strategies)
    except msgspec.ValidationError as error:
        raise RefusedError(
            f"the settings of {when} are not those of this version of QTS ({error}); use the"
            " version that ran"
        ) from None


def load_strategies(header: JournalHeader) -> list[Strategy[Any]]:
    """Return the strategies of a run; raise RefusedError if one was edited since."""
    found = []
    for each in header.strategies:
        if source_digest(load_strategy(each.source)) != header.sources.get(each.name):
            raise RefusedError(
                f"strategy {each.name} ({each.source}) was edited since the run of"
                f" {header.began:%Y-%m-%d %H:%M:%S} UTC; restore the file that ran, for its"
                " backtest takes the same decisions"
            )
        found.append(each.create())
    return found


def replay_run(
    run: JournaledRun,
    exits: Mapping[str, ExitLevels],
    tape: Tape,
    instruments: Instruments,
    progress: Callable[[int], None],
) -> DayLedger:
    """Run the strategies of a run over the tape of its time, with its settings and its states.

    `exits` are those of the positions that it begins with.
    """
    strategies, settings = load_strategies(run.header), settings_of(run.header)
    for each in strategies:
        if (state := run.states.get(each.key)) is not None:
            each.restore_state(state)
    outcomes: list[SignalOutcome] = []
    own = tape.select(None, run.began, math.nextafter(run.ended, math.inf))
    result = run_backtest(
        strategies,
        with_params(own, run.params, {each.key: each for each in strategies}),
        settings,
        instruments=instruments,
        opening=Opening(run.opening, exits),
        on_signal=outcomes.append,
        way="generic",
        progress=progress,
        ends_process=True,
    )
    refused = [each for each in outcomes if each.reason]
    return DayLedger(orders=_orders(result, outcomes), refused=refused)


def with_params(
    tape: Tape, changes: Sequence[ParamsChange], strategies: dict[str, Strategy[Any]]
) -> Tape:
    """Return the tape; while it is read, parameters change at the times at which they did."""
    ordered = sorted(changes, key=lambda change: change.at)

    def chunks(played: Tape) -> Iterator[Chunk]:
        left = list(ordered)
        for chunk in tape:
            played.symbols[:] = tape.symbols
            begin = 0
            while left and left[0].at < chunk.at[-1]:
                change = left.pop(0)
                place = int(np.searchsorted(chunk.at, change.at, side="right"))
                if place > begin:
                    yield _part(chunk, begin, place)
                    begin = place
                strategy = strategies[change.strategy_key]
                strategy.set_params(strategy.parse_params(change.params))
            yield _part(chunk, begin, len(chunk.at))

    return Tape(tape.symbols, chunks)


def _part(chunk: Chunk, begin: int, end: int) -> Chunk:
    return Chunk(chunk.symbol[begin:end], *(column[begin:end] for column in chunk[1:]))


def asked_sizes(outcomes: Sequence[SignalOutcome]) -> dict[object, str]:
    """Return what the signals asked for, by `asked_key`."""
    return {
        asked_key(each.strategy_key, each.symbol, each.side, each.at): each.asked
        for each in outcomes
    }


def asked_key(strategy: str, symbol: str, side: Side, at: float) -> object:
    return strategy, symbol, side, round(at * 1e6)


def _orders(result: BacktestResult, outcomes: Sequence[SignalOutcome]) -> list[DayOrder]:
    fills: defaultdict[str, list[Fill]] = defaultdict(list)
    for fill in result.fills:
        fills[fill.broker_order_id].append(fill)
    asked, latency_s = asked_sizes(outcomes), result.settings.paper.latency_ms / 1000
    orders = []
    for number, proposal in enumerate(result.proposals, 1):
        at = proposal.decided_at.timestamp()
        key = asked_key(proposal.strategy_key, proposal.symbol, proposal.side, at)
        orders.append(
            DayOrder(
                strategy=proposal.strategy_key,
                symbol=proposal.symbol,
                side=proposal.side,
                decided_at=at,
                reached_at=at + latency_s,
                quantity=proposal.quantity,
                asked=asked.get(key, ""),
                limit=proposal.price,
                signal_id=proposal.signal_id,
                fills=tuple(fills[f"B{number}"]),  # the order manager numbers them
            )
        )
    return orders


_HALF_US = 5e-7  # times have microseconds: one that is equal counts


class RecordedQuote(NamedTuple):
    price: float
    bid: float
    ask: float

    def of(self, side: Side) -> Decimal:
        """Return what an order of this side trades at: the opposite quote, else the last price."""
        quote = self.ask if side is Side.BUY else self.bid
        return Decimal(repr(quote if 0 < quote < float("inf") else self.price))


class Prices(NamedTuple):
    """First and last price of a day, and the quotes at some moments of it."""

    first: float
    last: float
    quotes: Mapping[float, RecordedQuote]


def read_prices(tape: Tape, moments: Mapping[str, Iterable[float]]) -> dict[str, Prices]:
    """Return the prices of these symbols, with the last quote at or before each moment.

    Before the first tick of a symbol, that tick counts. A symbol without a tick has no entry.
    """
    collectors = {symbol: _Collector(times) for symbol, times in moments.items()}
    for chunk in tape:
        order = np.argsort(chunk.symbol, kind="stable")
        symbols = chunk.symbol[order]
        for index in np.unique(symbols).tolist():
            collector = collectors.get(tape.symbols[index])
            if collector is not None:
                begin, end = np.searchsorted(symbols, (index, index + 1))
                collector.add(chunk, order[begin:end])
    return {symbol: each.prices() for symbol, each in collectors.items() if each.first}


class _Collector:
    """Quotes of one symbol."""

    def __init__(self, times: Iterable[float]) -> None:
        self._times = np.array(sorted(set(times)), np.float64)
        self._quotes: dict[float, RecordedQuote] = {}
        self._first_quote: RecordedQuote | None = None
        self.first = self._last = 0.0

    def add(self, chunk: Chunk, rows: npt.NDArray[np.int64]) -> None:
        price = chunk.price[rows]
        rows = rows[(price > 0) & np.isfinite(price)]
        if not len(rows):
            return
        if self._first_quote is None:
            self._first_quote = _quote(chunk, int(rows[0]))
            self.first = self._first_quote.price
        self._last = float(chunk.price[rows[-1]])
        places = np.searchsorted(chunk.at[rows], self._times + _HALF_US, side="right")
        for time, place in zip(self._times.tolist(), places.tolist(), strict=True):
            if place:
                self._quotes[time] = _quote(chunk, int(rows[place - 1]))

    def prices(self) -> Prices:
        if self._first_quote is not None:
            for time in self._times.tolist():
                self._quotes.setdefault(time, self._first_quote)
        return Prices(self.first, self._last, self._quotes)


def _quote(chunk: Chunk, row: int) -> RecordedQuote:
    return RecordedQuote(*(float(column[row]) for column in (chunk.price, chunk.bid, chunk.ask)))
