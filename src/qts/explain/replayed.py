"""Backtest of a run over the record of its day, from the account as it was."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
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
