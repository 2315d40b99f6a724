"""Download of past bars: its plan, then pages, newest first, each stored before the next.

Invariant: a range is marked as covered in the same file, at the same moment, as its bars. So the
process may be killed at any point: what is stored is complete, and the next download requests what
is not covered. No bar is missing or stored twice.

    missing range  start ─────────────┬──────────────── end
                       not yet read   │ covered, page by page
                                 page.start

KIS rewrites past days after a split. A range is therefore read with the stored bar on either side
of it; if one of them has changed, the whole series is deleted and read again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo

import msgspec
import numpy as np

from qts.domain import Clock, Market, OperationError, RefusedError, Timeframe, UnreachableError
from qts.history.catalogue import BarCatalogue
from qts.history.catalogue_file import Range, Rows, Series, bar_rows, subtract
from qts.venues import BarHistory, BarPage, HistoryRules, RateLimitedError, VenueRejectedError

PARALLEL = 8  # symbols at once; the limiter sets the rate
TRIES = 6  # of a page, with pauses of 1, 2, 4, ... seconds
_PRICES = ("open", "high", "low", "close")


_AGO = re.compile(r"(\d{1,5}) *days? +ago", re.ASCII | re.IGNORECASE)
_DAYS = {"now": None, "today": 0, "yesterday": 1}


class SymbolPlan(msgspec.Struct, frozen=True):
    """Ranges that a symbol lacks, and the requests they take at most."""

    symbol: str
    missing: list[Range]
    requests: int


class DownloadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a download will request."""

    market: Market | str = msgspec.field(name="venue")
    timeframe: Timeframe
    start: datetime = msgspec.field(name="from")
    end: datetime = msgspec.field(name="to")
    symbols: list[SymbolPlan]
    requests: int
    per_second: float
    seconds: float
    notes: list[str]

    @property
    def is_adjusted(self) -> bool:
        """Whether the venue changes past bars after a split."""
        return self.market is Market.KRX and self.timeframe is Timeframe.D1

    def render(self) -> str:
        """Return the plan as lines for a reader."""
        todo = sum(1 for each in self.symbols if each.missing)
        lines = [
            f"{self.market} {self.timeframe} bars from {_short(self.start)} to {_short(self.end)} "
            f"UTC; symbols: {len(self.symbols):,}, to read: {todo:,}",
            f"requests: {self.requests:,} at most, {self.per_second:.1f} a second within the "
            f"limits, about {_duration(self.seconds)}",
            *self.notes,
        ]
        return "\n".join(lines)


def plan_download(
    rules: HistoryRules,
    catalogue: BarCatalogue,
    symbols: Sequence[str],
    timeframe: Timeframe,
    wanted: tuple[float, float | None],
    now: float,
) -> DownloadPlan:
    """Compare what is wanted with what the catalogue covers.

    `wanted` ends with the last bar that no longer changes if its end is None. Raises RefusedError
    when the venue has nothing of the wanted time.
    """
    start, end = wanted[0], rules.latest(timeframe, now)
    end = end if wanted[1] is None else min(end, wanted[1])
    earliest = rules.earliest(timeframe, now)
    if start < earliest.at:
        day = datetime.fromtimestamp(earliest.at, rules.zone).date()
        raise RefusedError(f"{earliest.reason}; expected --from {day} or later")
    if end <= start:
        raise RefusedError(
            f"no closed {timeframe} bar between {_short(_utc(start))} and {_short(_utc(end))} UTC; "
            "expected an earlier --from or a later --to"
        )
    plans = []
    for symbol in symbols:
        missing = subtract((start, end), catalogue.covered(Series(rules.market, timeframe, symbol)))
        requests = sum(rules.requests(timeframe, *each) for each in missing)
        plans.append(SymbolPlan(symbol, missing, requests))
    total = sum(each.requests for each in plans)
    return DownloadPlan(
        market=rules.market,
        timeframe=timeframe,
        start=_utc(start),
        end=_utc(end),
        symbols=plans,
        requests=total,
        per_second=rules.per_second,
        seconds=total / rules.per_second,
        notes=[],
    )


def parse_moment(text: str, zone: tzinfo, now: datetime) -> float:
    """Return the epoch seconds of 2026-10-01, 2026-10-01T09:00, `30 days ago`, today or now.

    Days begin, and times without an offset are, in `zone`.
    """
    local, words = now.astimezone(zone), text.strip().lower()
    if words == "now":
        return now.timestamp()
    ago = _AGO.fullmatch(words)
    if ago or words in _DAYS:
        days = int(ago[1]) if ago else _DAYS[words] or 0
        midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
        return (midnight - timedelta(days=days)).timestamp()
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise RefusedError(
            f"{text!r} is not a time; expected 2026-10-01, 2026-10-01T09:00, '30 days ago', "
            "yesterday, today or now"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp()


def _utc(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _short(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class DownloadProgress(msgspec.Struct):
    """Counters of a running download; `done` counts planned requests, also those not needed."""

    done: float = 0.0
    pages: int = 0
    bars: int = 0


class DownloadResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a download has stored."""

    pages: int
    bars: int
    read_again: list[str]
    """Symbols whose stored bars the venue has changed since."""
    without_bars: list[str]
    failed: dict[str, str]


class Downloader:
    """One run of a plan; the caller holds `catalogue.writing()`.

    Files are written on a thread, one at a time: a run that downloads keeps trading meanwhile.
    """

    def __init__(
        self,
        plan: DownloadPlan,
        history: BarHistory,
        catalogue: BarCatalogue,
        clock: Clock,
        on_page: Callable[[DownloadProgress], None],
        tries: int = TRIES,
    ) -> None:
        self._plan = plan
        self._history = history
        self._catalogue = catalogue
        self._clock = clock
        self._on_page = on_page
        self._tries = tries
        self._storing = asyncio.Lock()
        self.progress = DownloadProgress()
        self._read_again: list[str] = []
        self._failed: dict[str, str] = {}

    async def run(self) -> DownloadResult:
        """Download what the plan lacks; raises OperationError if the venue does not answer."""
        queue = [each for each in reversed(self._plan.symbols) if each.missing]

        async def work() -> None:
            while queue:
                await self._download(queue.pop())

        tasks = [asyncio.create_task(work()) for _ in range(min(PARALLEL, len(queue)))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return self._result()

    def _result(self) -> DownloadResult:
        tried = [each.symbol for each in self._plan.symbols if each.symbol not in self._failed]
        return DownloadResult(
            pages=self.progress.pages,
            bars=self.progress.bars,
            read_again=sorted(self._read_again),
            without_bars=[s for s in tried if not self._catalogue.info(self._series(s)).bars],
            failed=self._failed,
        )

    async def _download(self, plan: SymbolPlan) -> None:
        series = self._series(plan.symbol)
        length = sum(end - start for start, end in plan.missing)
        try:
            for span in reversed(plan.missing):
                share = plan.requests * (span[1] - span[0]) / length
                if not await self._fill(series, span, share):
                    await self._replace(series)
                    break
        except VenueRejectedError as error:
            self._failed[plan.symbol] = str(error)

    async def _fill(self, series: Series, span: Range, requests: float) -> bool:
        """Read a range; return False if a stored bar beside it has changed at the venue."""
        start, end = span
        low, high = self._neighbours(series, span)
        while end > start:
            page = await self._page(series, low, high)
            if self._has_changed(series, span, page):
                return False
            rows = bar_rows(bar for bar in page.bars if start < bar.at <= end)
            oldest = max(start, page.start)
            await self._store(series, (oldest, end), rows)
            self.progress.pages += 1
            self.progress.bars += len(rows)
            self.progress.done += requests * (end - oldest) / (span[1] - start)
            self._on_page(self.progress)
            end = high = oldest
        return True

    async def _store(self, series: Series, span: Range, rows: Rows) -> None:
        """Write a page; once begun it ends before the caller releases the catalogue."""
        async with self._storing:
            writing = asyncio.ensure_future(
                asyncio.to_thread(self._catalogue.write, series, span, rows)
            )
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                await asyncio.wait({writing})
                raise

    async def _replace(self, series: Series) -> None:
        """Delete a series that the venue has rewritten, and read all that it covered."""
        self._read_again.append(series.symbol)
        first = min(self._catalogue.covered(series)[0][0], self._plan.start.timestamp())
        self._catalogue.clear(series)
        await self._fill(series, (first, self._plan.end.timestamp()), 0.0)

    def _neighbours(self, series: Series, span: Range) -> Range:
        """Return the range extended to the stored days on either side of it."""
        start, end = span
        if not self._plan.is_adjusted:
            return span
        at = self._catalogue.rows(series)["at"]
        before, after = at[at <= start], at[at > end]
        low = before[-1] - 1.0 if len(before) else start
        return float(low), float(after[0] if len(after) else end)

    def _has_changed(self, series: Series, span: Range, page: BarPage) -> bool:
        beside = [bar for bar in page.bars if not span[0] < bar.at <= span[1]]
        for bar in beside:
            stored = self._catalogue.rows(series, bar.at - 1.0, bar.at)
            if len(stored) and not all(
                np.isclose(stored[-1][name], getattr(bar, name)) for name in _PRICES
            ):
                return True
        return False

    async def _page(self, series: Series, start: float, end: float) -> BarPage:
        timeframe = Timeframe(series.kind)
        for attempt in range(1, self._tries + 1):
            try:
                return await self._history.page(series.symbol, timeframe, start, end)
            except (RateLimitedError, UnreachableError) as error:
                if attempt == self._tries:
                    raise OperationError(f"{series.symbol}: {error}") from None
                await self._clock.sleep(2.0 ** (attempt - 1))
        raise AssertionError("the last try returns or raises")

    def _series(self, symbol: str) -> Series:
        return Series(self._plan.market, str(self._plan.timeframe), symbol)
