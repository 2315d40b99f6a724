"""Download of past bars: pages from the newest to the oldest, each stored before the next.

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
from collections.abc import Callable

import msgspec
import numpy as np

from qts.domain import Clock, OperationError, Timeframe, UnreachableError
from qts.history.catalogue import BarCatalogue
from qts.history.catalogue_file import Rows, Series, bar_rows
from qts.history.plan import DownloadPlan, SymbolPlan
from qts.history.ranges import Range
from qts.venues import BarHistory, BarPage, RateLimitedError, VenueRejectedError

PARALLEL = 8  # symbols at once; the limiter sets the rate
TRIES = 6  # of a page, with pauses of 1, 2, 4, ... seconds
_PRICES = ("open", "high", "low", "close")


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
