"""The last bars of a symbol up to now: from the catalogue, and what it lacks from the venue.

What the venue returns is stored, by the same code as a download, so that the next read requests
only what is new. A symbol that does not trade in every interval has fewer bars in the same time:
the read goes further back until there are enough, at most 16 times as far.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

import numpy as np

from qts.domain import Clock, OperationError, Timeframe
from qts.history.catalogue import BarCatalogue
from qts.history.catalogue_file import Range, Rows, Series, no_rows
from qts.history.download import Downloader, plan_download
from qts.venues import BarHistory, BarPage, HistoryRules

_FURTHER = (1, 4, 16)
_SHARE = 0.5  # of the requests that the limits allow for history; quotes get the rest at once


class RecentRows(NamedTuple):
    """Bars of one symbol, oldest first; every bar up to `end` that has a trade is there."""

    rows: Rows
    end: float


class RecentBars:
    """Reader of the last 1m or 1d bars; the caller holds `writing()`."""

    def __init__(
        self, rules: HistoryRules, history: BarHistory, catalogue: BarCatalogue, clock: Clock
    ) -> None:
        self.rules = rules
        self._history = _PacedHistory(history, rules.per_second * _SHARE, clock)
        self._catalogue = catalogue
        self._clock = clock

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Hold the catalogue; raises RefusedError while another process writes to it."""
        held = self._catalogue.writing()
        await asyncio.to_thread(held.__enter__)
        try:
            yield
        finally:
            held.__exit__(None, None, None)

    async def read(
        self, symbol: str, timeframe: Timeframe, wanted: Mapping[Timeframe, int]
    ) -> RecentRows:
        """Return bars that make up so many of each wanted timeframe, where the venue has them.

        Raises OperationError when the venue does not answer or the disk refuses.
        """
        now = self._clock.now().timestamp()
        end = self.rules.latest(timeframe, now)
        earliest = self.rules.earliest(timeframe, now).at
        seconds = max(count * each.seconds for each, count in wanted.items())
        align = max(each.seconds for each in wanted)
        rows = no_rows(str(timeframe))
        for further in _FURTHER:
            bars = further * (seconds // timeframe.seconds)
            start = self.rules.start(timeframe, bars, end)
            start = max(earliest, start - start % align)
            if end > start:
                rows = await self._between(symbol, timeframe, (start, end), now)
                if _has_enough(rows, wanted):
                    break
            if start <= earliest:
                break
        return RecentRows(rows, end)

    async def _between(self, symbol: str, timeframe: Timeframe, span: Range, now: float) -> Rows:
        """Return every bar of a span; download what the catalogue lacks of it."""
        series = Series(self.rules.market, str(timeframe), symbol)
        planned = (self.rules, self._catalogue, [symbol], timeframe, span, now)
        plan = await asyncio.to_thread(plan_download, *planned)
        if plan.requests:
            download = Downloader(
                plan, self._history, self._catalogue, self._clock, lambda _: None, tries=1
            )
            result = await download.run()
            if why := result.failed.get(symbol):
                raise OperationError(f"{symbol}: {why}")
        return await asyncio.to_thread(self._catalogue.rows, series, *span)


class _PacedHistory:
    """History with at most so many pages a second."""

    def __init__(self, history: BarHistory, per_second: float, clock: Clock) -> None:
        self._history = history
        self._interval_ns = round(1e9 / per_second)
        self._clock = clock
        self._next_ns = clock.monotonic_ns()

    async def page(self, symbol: str, timeframe: Timeframe, start: float, end: float) -> BarPage:
        now_ns = self._clock.monotonic_ns()
        wait_ns = max(0, self._next_ns - now_ns)
        self._next_ns = now_ns + wait_ns + self._interval_ns
        await self._clock.sleep(wait_ns / 1e9)
        return await self._history.page(symbol, timeframe, start, end)

    async def symbols(self) -> Collection[str] | None:
        return await self._history.symbols()


def _has_enough(rows: Rows, wanted: Mapping[Timeframe, int]) -> bool:
    return all(
        len(np.unique(np.ceil(rows["at"] / each.seconds))) >= count
        for each, count in wanted.items()
    )
