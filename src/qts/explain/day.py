"""Explanation of a day: its journals, its record, its ledger, and the parts of the difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from qts.backtest import Tape, load_instruments, recorded_tape
from qts.database import Database
from qts.domain import (
    MANUAL,
    AccountKey,
    ExitLevels,
    Instruments,
    OperationError,
    RefusedError,
    Side,
)
from qts.explain.attribution import (
    PARTS,
    Item,
    PartName,
    attribute,
    earned,
    last_prices,
    needed_moments,
)
from qts.explain.ledger import ZERO, DayLedger, clean, exact, load_exits, load_live_ledger
from qts.explain.replayed import (
    Prices,
    asked_key,
    asked_sizes,
    load_strategies,
    read_prices,
    replay_run,
    settings_of,
)
from qts.feed import recorded_days
from qts.pipeline import (
    JournaledRun,
    journal_files,
    load_journaled_run,
    read_header,
    replay_states,
)

Progress = Callable[[int], None]


class DaySources(NamedTuple):
    """What is explained, and where its journals and its record are."""

    day: date
    start: datetime
    end: datetime
    account: AccountKey
    journals: Path
    record: Path


class LiveDay(NamedTuple):
    """What happened on a day, by its journals and its ledger."""

    runs: Sequence[JournaledRun]  # in order of time
    ledger: DayLedger
    exits: Sequence[Mapping[str, ExitLevels]]  # of the positions that each run began with


class SideFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the run or of the backtest; `earned` is after fees, with open positions."""

    earned: Decimal
    fees: Decimal
    orders: int
    fills: int
    refused: int


class PartOfDifference(msgspec.Struct, frozen=True, kw_only=True):
    part: PartName
    won: Decimal
    items: list[Item]  # the largest first


class DayExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a day earned something else than its backtest; the parts add up to the difference."""

    day: date
    account: str
    runs: int
    live: SideFigures
    backtest: SideFigures
    held: Decimal  # what positions from before the runs earned, the same on both sides
    difference: Decimal
    parts: list[PartOfDifference]
    notes: list[str]


async def load_live_day(database: Database, sources: DaySources) -> LiveDay:
    """Return the runs of the day with a journal, and the orders of its ledger."""
    runs, account = load_runs(sources), sources.account
    ledger = await load_live_ledger(database, account, sources.start, sources.end)
    exits = [
        await load_exits(database, account, run.opening, max(run.header.began, sources.start))
        for run in runs
    ]
    return LiveDay(runs, ledger, exits)


def load_runs(sources: DaySources) -> list[JournaledRun]:
    """Return the runs of the day that have a journal, in order of time."""
    day, folder, account = sources.day, sources.journals, str(sources.account)
    paths = journal_files(folder, sources.start, sources.end)
    headers = {path: read_header(path) for path in paths}
    own = [path for path, header in headers.items() if account in header.account_keys]
    if not own:
        _refuse_journals(sources, folder, [header.account_keys for header in headers.values()])
    for path in own:
        if headers[path].accounts > 1:
            raise RefusedError(
                f"the run of {path.name} traded at {headers[path].accounts} venues; qts explain"
                " takes runs at one venue"
            )
        settings_of(headers[path])
        load_strategies(headers[path])
    runs = [_load_run(sources, path) for path in own]
    found = [run for run in runs if run.began <= run.ended]
    if not found:
        raise RefusedError(f"the journals of {day} in {folder} have no tick of that day")
    return sorted(found, key=lambda run: run.began)


def _load_run(sources: DaySources, path: Path) -> JournaledRun:
    """Return the part of a run in the day; one that began before has the states of midnight."""
    start = sources.start.timestamp()
    run = load_journaled_run(path, start, sources.end.timestamp())
    if run.header.began < sources.start:
        run.states = replay_states(path, start)
    return run


def _refuse_journals(sources: DaySources, folder: Path, others: Sequence[tuple[str, ...]]) -> None:
    of = f"the account {sources.account}"
    if named := sorted(set(chain.from_iterable(others))):
        raise RefusedError(
            f"no journal of {sources.day} in {folder} is of {of}; there are those of"
            f" {', '.join(named)}: name one with --account"
        )
    if others:
        raise RefusedError(
            f"the journals of {sources.day} in {folder} have no settings: an earlier version of"
            " QTS wrote them; days that this version runs can be explained"
        )
    raise RefusedError(
        f"no journal of {sources.day} in {folder} (pipeline.journal); a run writes one where"
        " pipeline.journal is set"
    )


def load_record(sources: DaySources) -> Tape:
    """Return the recorded market of the day."""
    days = recorded_days(sources.record)
    if sources.day not in days:
        near = f"; recorded are {min(days)} to {max(days)}" if days else ""
        raise RefusedError(
            f"no record of {sources.day} in {sources.record}{near}; a run records where"
            " feed.record is true, and keeps feed.keep_days"
        )
    return recorded_tape(days[sources.day])


def explain_day(sources: DaySources, live: LiveDay, progress: Progress) -> DayExplanation:
    """Run the backtest of each run of the day, and explain the difference."""
    tape, runs = load_record(sources), live.runs
    instruments = load_instruments(None, sources.record, "auto")
    ledgers = list(_replayed(live, tape, instruments, progress))
    backtest = DayLedger(
        orders=[order for each in ledgers for order in each.orders],
        refused=[signal for each in ledgers for signal in each.refused],
    )
    first, settings = runs[0], settings_of(runs[0].header)
    ours, early = _within(sources, live)
    moments = needed_moments((ours, backtest))
    for symbol in first.opening.positions:
        moments.setdefault(symbol, set()).add(first.began)
    prices = read_prices(tape, moments)

    def charge(symbol: str, side: Side, amount: Decimal) -> Decimal:
        return settings.costs.charge(instruments[symbol], side, amount)

    items = attribute(ours, backtest, prices, charge, settings.signal_ttl_s)
    return _explanation(
        sources,
        runs,
        (ours, backtest),
        prices,
        items,
        [*_notes(sources, runs, early, moments, prices), *_late_notes(ours, runs)],
    )


def _replayed(
    live: LiveDay, tape: Tape, instruments: Instruments, progress: Progress
) -> Iterator[DayLedger]:
    done = 0
    for run, exits in zip(live.runs, live.exits, strict=True):
        last = done

        def report(events: int, before: int = last) -> None:
            nonlocal done
            done = before + events
            progress(done)

        yield replay_run(run, exits, tape, instruments, report)


def _within(sources: DaySources, live: LiveDay) -> tuple[DayLedger, int]:
    """Return the ledger since the first run, as the journals have it, and how many fills it lacks.

    What traded before is part of the account that the backtest begins with.
    """
    start = max(sources.start, min(run.header.began for run in live.runs)).timestamp()
    signals = [signal for run in live.runs for signal in run.signals]
    asked = asked_sizes(signals)
    orders, early = [], 0
    for order in live.ledger.orders:
        fills = tuple(fill for fill in order.fills if fill.at.timestamp() >= start)
        early += len(order.fills) - len(fills)
        if not fills and order.reached_at < start:
            continue
        key = asked_key(order.strategy, order.symbol, order.side, order.decided_at)
        is_earlier = order.decided_at < start
        size = asked.get(key, "")
        orders.append(replace(order, fills=fills, asked=size, is_earlier=is_earlier))
    refused = [*live.ledger.refused, *(signal for signal in signals if signal.reason)]
    return DayLedger(orders=orders, refused=refused), early


def _explanation(
    sources: DaySources,
    runs: Sequence[JournaledRun],
    sides: tuple[DayLedger, DayLedger],
    prices: Mapping[str, Prices],
    items: Sequence[Item],
    notes: list[str],
) -> DayExplanation:
    with exact():
        last, held = last_prices(sides, prices), clean(_held(runs[0], prices))
        live, backtest = (_figures(ledger, earned(ledger, last) + held) for ledger in sides)
        parts = [_part(name, items) for name in PARTS]
        difference = clean(live.earned - backtest.earned)
        total = sum((part.won for part in parts), ZERO)
    if total != difference:
        raise OperationError(
            f"the parts add up to {total} won and the difference is {difference} won; this is an"
            " error of QTS, please report it"
        )
    return DayExplanation(
        day=sources.day,
        account=str(sources.account),
        runs=len(runs),
        live=live,
        backtest=backtest,
        held=held,
        difference=difference,
        parts=parts,
        notes=notes,
    )


def _part(name: PartName, items: Sequence[Item]) -> PartOfDifference:
    own = sorted((item for item in items if item.part == name), key=lambda item: -abs(item.won))
    won = sum((item.won for item in own), ZERO)
    return PartOfDifference(part=name, won=clean(won), items=own)


def _held(run: JournaledRun, prices: Mapping[str, Prices]) -> Decimal:
    known = [each for each in run.opening.positions.values() if each.symbol in prices]
    return sum((_move(prices[each.symbol], run.began) * each.quantity for each in known), ZERO)


def _move(prices: Prices, since: float) -> Decimal:
    return Decimal(repr(prices.last)) - Decimal(repr(prices.quotes[since].price))


def _figures(ledger: DayLedger, won: Decimal) -> SideFigures:
    return SideFigures(
        earned=clean(won),
        fees=clean(ledger.fees),
        orders=len(ledger.orders),
        fills=ledger.fills,
        refused=len(ledger.refused),
    )


def _notes(
    sources: DaySources,
    runs: Sequence[JournaledRun],
    early: int,
    moments: Mapping[str, object],
    prices: Mapping[str, Prices],
) -> list[str]:
    """Return what the figures do not show and a reader must know."""
    notes = []
    if early:
        notes.append(
            f"{early} fills before the first run with a journal count on neither side: the backtest"
            " begins with the account after them"
        )
    for run in runs:
        at = f"{run.header.began:%H:%M:%S} UTC"
        if run.header.began < sources.start:
            notes.append(
                f"the run of {run.header.began:%Y-%m-%d} {at} began before the day: its backtest"
                " begins as after a restart at midnight: with its account and states"
            )
        if run.warmed:
            notes.append(
                f"{', '.join(run.warmed)} began the run of {at} with bars from before it: the"
                " backtest warms up over the first part of the record"
            )
        if run.restarted:
            notes.append(f"the process of {', '.join(run.restarted)} restarted in the run of {at}")
    if missing := sorted(set(moments) - set(prices)):
        notes.append(f"no record of {', '.join(missing)}: the last fill is its price")
    for run, following in pairwise(runs):
        if settings_of(run.header) != settings_of(following.header):
            notes.append(
                f"the settings changed with the run of {following.header.began:%H:%M:%S} UTC"
            )
    return notes


def _late_notes(live: DayLedger, runs: Sequence[JournaledRun]) -> Iterator[str]:
    """Yield a note on orders that a journal which ended early does not have."""
    last = max(runs, key=lambda run: run.ended)
    end = last.ended + settings_of(last.header).signal_ttl_s
    late = sum(order.decided_at > end and order.strategy != MANUAL for order in live.orders)
    if late:
        at = datetime.fromtimestamp(last.ended, UTC)
        yield (
            f"{late} orders came after the last journal of the day ended at {at:%H:%M:%S} UTC: no"
            " backtest has them, and they are a signal of the run"
        )
