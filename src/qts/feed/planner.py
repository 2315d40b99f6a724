"""Plan of a scan: its symbols, and the shortest interval for all, all day, within every limit.

Watched symbols, which are held or on order, come first: those without a stream are polled every
second, or more slowly where that would take more than 80 % of what quotes may use. The interval
of the scan is the largest of those that the second, the minute, the rest of the day and the
setting allow, after the share of orders, accounts, watched symbols and bursts:

    calls per scan = symbols / symbols per call
    by the second  = calls / (quota of a second / (1 s + reply) - watched - bursts)
    by the minute  = calls / (quota of a minute / (60 s + reply) - watched - bursts)
    by the day     = calls x seconds left / (requests left today - watched - reserve for bursts)

A request counts until its window after the reply has passed, hence `+ reply`. `plan_scan` reads
no clock and does no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from qts.domain import InstrumentClass, RefusedError
from qts.feed.requests import book_interval_s
from qts.venues import (
    MAX_WATCHED_SHARE,
    RateLimitConfig,
    RequestPriority,
    parse_master,
    quota_for,
    unpack_master,
)

REPLY_S = 0.1  # allowance for a venue's reply
BURST_SHARE = 0.10  # of the requests left today
BURST_PER_SYMBOL_S = 1.0
WATCH_INTERVAL_S = 1.0
MAX_OF_RATE = 2 / 3  # of the quota of quotes, for bursts at most

Bound = Literal["asked", "second", "minute", "day"]


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What to scan, and how much of the day is left."""

    symbols: int
    per_call: int
    seconds_left: float
    day_left: int
    asked_s: float = 30.0
    bursts: int = 10
    burst_s: float = 300.0
    watched: int = 0  # held or on order, and polled
    streamed: int = 0  # held or on order, with a stream
    indices: int = 0  # requested every `index_interval_s`
    index_interval_s: float = 10.0
    no_indices: str = ""  # why there are none
    books: int = 0  # order books of open orders, polled
    streamed_books: int = 0


class ScanPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Scan interval that can be kept until the end of the day."""

    interval_s: float
    calls: int
    rate_per_s: float
    bursts: int
    burst_per_s: float  # income for bursts: the day's requests that the scan leaves
    watch_interval_s: float  # between two polls of a watched symbol
    watch_per_s: float  # requests for watched symbols
    watch_max_per_s: float  # requests that watched symbols may use
    index_per_s: float  # requests for indices
    book_per_s: float  # requests for order books
    bound: Bound
    day_share: float
    demand: Demand
    limits: RateLimitConfig
    by: dict[str, float]  # shortest interval that each limit allows

    @property
    def description(self) -> str:
        if math.isinf(self.interval_s):
            return "no scan: the day's requests are used up"
        return (
            f"{self.interval_s:.1f} s scan, {self.calls:,} calls, {self.rate_per_s:.1f}/s, "
            f"{math.floor(self.day_share * 100)} % of today's quota"
        )

    @property
    def granted(self) -> bool:
        return self.bound == "asked"

    @property
    def watch_description(self) -> str:
        """What is held or on order, and how often it is priced."""
        demand, parts = self.demand, list[str]()
        if demand.streamed:
            parts.append(f"{demand.streamed} streamed")
        if demand.watched and math.isinf(self.watch_interval_s):
            parts.append(f"{demand.watched} not polled: the day's requests are used up")
        elif demand.watched:
            parts.append(
                f"{demand.watched} polled every {self.watch_interval_s:.1f} s"
                f" = {self.watch_per_s:.2g}/s"
            )
        return ", ".join(parts) or "none"

    @property
    def index_description(self) -> str:
        demand = self.demand
        if not demand.indices:
            return "none" + (f": {demand.no_indices}" if demand.no_indices else "")
        return f"{demand.indices} every {demand.index_interval_s:g} s = {self.index_per_s:.2g}/s"

    @property
    def book_description(self) -> str:
        demand, parts = self.demand, list[str]()
        if demand.streamed_books:
            parts.append(f"{demand.streamed_books} streamed")
        if demand.books:
            interval_s = demand.books / self.book_per_s
            parts.append(
                f"{demand.books} polled every {interval_s:.1f} s = {self.book_per_s:.2g}/s"
            )
        return ", ".join(parts) or "none"

    def render(self) -> str:
        return "\n".join(_lines(self))


def plan_scan(limits: RateLimitConfig, demand: Demand) -> ScanPlan:
    quotes = quota_for(limits, RequestPriority.NORMAL)
    calls = math.ceil(demand.symbols / demand.per_call)
    spendable = max(0, demand.day_left - (limits.per_day - quotes.day))
    seconds_left = max(demand.seconds_left, 1.0)
    index = demand.indices / demand.index_interval_s
    book = 1 / book_interval_s(limits.per_second) if demand.books else 0.0
    by_second = quotes.second / (1 + REPLY_S) - index - book
    by_minute = quotes.minute / (60 + REPLY_S) - index - book
    spendable = max(0, math.floor(spendable - (index + book) * seconds_left))
    watch_max = MAX_WATCHED_SHARE * min(by_second, by_minute, spendable / seconds_left)
    watch_interval = watch_interval_s(demand.watched, demand.per_call, watch_max)
    watch = math.ceil(demand.watched / demand.per_call) / watch_interval
    by_second, by_minute = by_second - watch, by_minute - watch
    spendable = max(0, math.floor(spendable - watch * seconds_left))
    bursts = _bursts(demand, min(by_second, by_minute), spendable)
    cost = burst_cost(bursts, demand.per_call)
    by_day = spendable * (1 - BURST_SHARE * (bursts > 0)) / seconds_left
    by = {
        "second": _interval(calls, by_second - cost),
        "minute": _interval(calls, by_minute - cost),
        "day": _interval(calls, by_day),
        "asked": demand.asked_s,
    }
    bound = max(by, key=lambda name: (by[name], name == "asked"))
    rate = calls / by[bound]
    left_per_s = spendable / seconds_left
    return ScanPlan(
        interval_s=by[bound],
        calls=calls,
        rate_per_s=rate,
        bursts=bursts,
        burst_per_s=max(0.0, left_per_s - rate),
        watch_interval_s=watch_interval,
        watch_per_s=watch,
        watch_max_per_s=watch_max,
        index_per_s=index,
        book_per_s=book,
        bound=msgspec.convert(bound, Bound),
        day_share=(rate + watch + index + book) * demand.seconds_left / limits.per_day,
        demand=demand,
        limits=limits,
        by=by,
    )


def watch_interval_s(watched: int, per_call: int, max_per_s: float) -> float:
    """Return the seconds between two polls of that many symbols within a rate of requests."""
    return max(WATCH_INTERVAL_S, _interval(math.ceil(watched / per_call), max_per_s))


def burst_cost(bursts: int, per_call: int) -> float:
    """Return the requests per second of that many bursts, which share calls."""
    return math.ceil(bursts / per_call) / BURST_PER_SYMBOL_S


def _bursts(demand: Demand, rate: float, spendable: int) -> int:
    """Return how many bursts the rate and the reserve allow."""
    calls = math.floor(rate * MAX_OF_RATE + 1e-9)
    affordable = math.floor(spendable * BURST_SHARE / demand.burst_s)
    return min(demand.bursts, min(calls, affordable) * demand.per_call)


def _interval(calls: int, rate: float) -> float:
    return calls / rate if rate > 0 else math.inf if calls else 0.0


def _lines(plan: ScanPlan) -> list[str]:
    limits, demand, quotes = (
        plan.limits,
        plan.demand,
        quota_for(plan.limits, RequestPriority.NORMAL),
    )
    cost = burst_cost(plan.bursts, demand.per_call)
    reserve = BURST_SHARE if plan.bursts else 0.0
    spendable = max(0, demand.day_left - (limits.per_day - quotes.day))
    rates = [rate for rate in (plan.index_per_s, plan.book_per_s, plan.watch_per_s) if rate]
    fixed = " - ".join([*(f"{rate:.2g}/s" for rate in rates), f"{cost:g}/s"])
    polls = "".join(f" {rate * demand.seconds_left:,.0f} -" for rate in rates)
    lines = [
        f"limits     {limits.per_second}/s, {limits.per_minute:,}/min, {limits.per_day:,}/day"
        f" ({limits.day})",
        f"reserved   {limits.per_second - quotes.second}/s,"
        f" {limits.per_minute - quotes.minute:,}/min, {limits.per_day - quotes.day:,}/day"
        " for orders and accounts",
        f"indices    {plan.index_description}",
        f"watched    {plan.watch_description}",
        f"books      {plan.book_description}",
        f"bursts     {plan.bursts} symbols once a second = {cost:g}/s;"
        f" {reserve:.0%} of the requests left today",
        f"a scan     {demand.symbols:,} symbols / {demand.per_call} a call = {plan.calls:,} calls",
        f"time left  {demand.seconds_left / 3600:.2f} h = {demand.seconds_left:,.0f} s,"
        f" {demand.day_left:,} requests",
        f"by second  {plan.calls:,} / ({quotes.second} / {1 + REPLY_S:g} s - {fixed})"
        f" = {plan.by['second']:,.1f} s",
        f"by minute  {plan.calls:,} / ({quotes.minute:,} / {60 + REPLY_S:g} s - {fixed})"
        f" = {plan.by['minute']:,.1f} s",
        f"by day     {plan.calls:,} x {demand.seconds_left:,.0f} s / ({spendable:,} -{polls}"
        f" {reserve:.0%}) = {plan.by['day']:,.1f} s",
        f"plan       {plan.description}",
    ]
    if not plan.granted:
        lines.append(
            f"asked      {demand.asked_s:g} s is not possible: the {plan.bound} allows"
            f" {plan.interval_s:,.1f} s; {_alternative(plan)}"
        )
    return lines


def _alternative(plan: ScanPlan) -> str:
    fitting = math.floor(plan.demand.symbols * plan.demand.asked_s / plan.interval_s)
    if fitting < 1:
        return f"no symbol can be scanned every {plan.demand.asked_s:g} s today"
    return f"{fitting:,} symbols could be scanned every {plan.demand.asked_s:g} s"


_LISTS = (".mst", ".mst.zip")


def read_symbols(path: Path | None) -> list[str]:
    """Read the symbols of a file, or of all lists in a folder; each once, in order."""
    if path is None:
        raise RefusedError(
            "feed.symbols is not set; name a file of symbols, one per line, or a folder with "
            "KIS's kospi_code.mst.zip and kosdaq_code.mst.zip"
        )
    try:
        symbols = list(dict.fromkeys(_symbols_in(path)))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"unreadable: {error}"
        raise RefusedError(f"feed.symbols, {path}: {reason}") from None
    if not symbols:
        raise RefusedError(
            f"feed.symbols, {path}: holds no symbol; expected one per line, as in 005930"
        )
    for symbol in symbols:
        if not symbol.isascii() or not symbol.replace("-", "").isalnum() or len(symbol) > 20:
            raise RefusedError(
                f"feed.symbols, {path}: {symbol[:40]!r} is not a symbol, as in 005930"
            )
    return symbols


def _symbols_in(path: Path) -> Iterator[str]:
    if path.is_dir():
        for file in sorted(path.iterdir()):
            if file.name.endswith(_LISTS):
                yield from _listed_stocks(file)
    elif path.name.endswith(_LISTS):
        yield from _listed_stocks(path)
    else:
        for line in path.read_text("utf-8").splitlines():
            if word := line.split("#")[0].strip():
                yield word


def _listed_stocks(path: Path) -> Iterator[str]:
    board = next((name for name in ("kospi", "kosdaq") if name in path.name), None)
    if board is None:
        raise RefusedError(
            f"feed.symbols, {path}: expected the names KIS gives: kospi_code, kosdaq_code"
        )
    data = path.read_bytes()
    for product in parse_master(
        board.upper(), unpack_master(data) if path.suffix == ".zip" else data
    ):
        if product.kind is InstrumentClass.STOCK:
            yield product.symbol
