"""Downloads into a catalogue, and a venue with bars of its own making."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

from qts.domain import Bar, Market, SystemClock, Timeframe, UnreachableError
from qts.history import BarCatalogue, Downloader, DownloadProgress, DownloadResult, plan_download
from qts.venues import BarHistory, BarPage, EarliestBars, HistoryRules


async def download(
    home: Path,
    history: BarHistory,
    rules: HistoryRules,
    symbols: list[str],
    timeframe: Timeframe,
    wanted: tuple[float, float],
) -> DownloadResult:
    catalogue = BarCatalogue(home)
    now = wanted[1] + 2 * 86_400
    plan = plan_download(rules, catalogue, symbols, timeframe, wanted, now)
    pages: list[DownloadProgress] = []
    with catalogue.writing():
        result = await Downloader(plan, history, catalogue, SystemClock(), pages.append).run()
    assert len(pages) == result.pages
    if pages and not result.failed and not result.read_again:
        assert abs(pages[-1].done - plan.requests) < 0.001
    return result


def stored(home: Path, market: Market, symbol: str, timeframe: Timeframe) -> list[Bar]:
    rows = BarCatalogue(home).bars(market, symbol, timeframe)
    return [Bar(symbol, timeframe, *row.item()) for row in rows]


class ListedBars:
    """Venue that holds the given bars, and returns them in pages of a few."""

    market = Market.KRX
    zone = UTC
    per_second = 10.0
    simulated = False

    def __init__(self, bars: list[Bar], page: int, failures: set[int]) -> None:
        self.bars = sorted(bars, key=lambda bar: bar.at)
        self.requests_made = 0
        self.asked: list[tuple[float, float]] = []
        self._page = page
        self._failures = failures

    def earliest(self, timeframe: Timeframe, now: float) -> EarliestBars:  # noqa: ARG002 - the port
        return EarliestBars(0.0, "")

    def start(self, timeframe: Timeframe, bars: int, end: float) -> float:
        return end - bars * timeframe.seconds

    def latest(self, timeframe: Timeframe, now: float) -> float:  # noqa: ARG002 - the port
        return now

    def requests(self, timeframe: Timeframe, start: float, end: float) -> int:  # noqa: ARG002 - the port
        return 1

    async def page(self, symbol: str, timeframe: Timeframe, start: float, end: float) -> BarPage:  # noqa: ARG002 - the port
        self.requests_made += 1
        self.asked.append((start, end))
        if self.requests_made in self._failures:
            raise KeyboardInterrupt
        inside = [bar for bar in self.bars if start < bar.at <= end]
        newest = inside[-self._page :]
        return BarPage(newest, newest[0].at - 1 if len(inside) > self._page else start)

    async def symbols(self) -> None:
        return None


class Unreachable(ListedBars):
    """Venue that does not answer for its first requests."""

    async def page(self, symbol: str, timeframe: Timeframe, start: float, end: float) -> BarPage:
        try:
            return await super().page(symbol, timeframe, start, end)
        except KeyboardInterrupt:
            raise UnreachableError("no reply") from None
