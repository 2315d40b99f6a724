"""Port of a venue's past bars: what it offers, and one page of them per request."""

from __future__ import annotations

from collections.abc import Collection
from datetime import tzinfo
from typing import NamedTuple, Protocol

from qts.domain import Bar, Market, OperationError, Timeframe
from qts.venues.clock_skew import ClockSkew

SETTLE_S = 10  # a bar may change shortly after its end, and our clock may be ahead


class BarPage(NamedTuple):
    """Reply to one request: every bar that closed after `start`, up to the requested end."""

    bars: list[Bar]
    """Closed bars with a trade, oldest first."""
    start: float


class EarliestBars(NamedTuple):
    """Begin of what a venue offers, in epoch seconds, and the reason for it."""

    at: float
    reason: str


class HistoryRules(Protocol):
    """What a venue offers of the past, known without a request. Times are epoch seconds."""

    @property
    def market(self) -> Market | str:
        """Market of the bars, by which the catalogue keeps them; else the name of the venue."""
        ...

    @property
    def simulated(self) -> bool:
        """Whether the bars come from a simulator; they have a separate catalogue."""
        ...

    @property
    def zone(self) -> tzinfo:
        """Time zone in which the days of the market begin."""
        ...

    @property
    def per_second(self) -> float:
        """Requests that the limits of the key allow for history."""
        ...

    def earliest(self, timeframe: Timeframe, now: float) -> EarliestBars:
        """Return from when on the venue offers bars, and why not from earlier on."""
        ...

    def start(self, timeframe: Timeframe, bars: int, end: float) -> float:
        """Return from when on a symbol that trades all the time has so many bars up to `end`."""
        ...

    def latest(self, timeframe: Timeframe, now: float) -> float:
        """Return the close of the last bar that no longer changes."""
        ...

    def requests(self, timeframe: Timeframe, start: float, end: float) -> int:
        """Return how many pages a symbol needs at most for the bars of (start, end]."""
        ...


class BarHistory(Protocol):
    """Past bars of a venue, read from the newest to the oldest."""

    async def page(self, symbol: str, timeframe: Timeframe, start: float, end: float) -> BarPage:
        """Request the newest bars of (start, end]; the caller continues at the page's start."""
        ...

    async def symbols(self) -> Collection[str] | None:
        """Return the symbols that it has bars of; None: a venue that does not list them."""
        ...


def check_clock(venue: str, skew: ClockSkew) -> None:
    """Raise OperationError if bars that have ended by our clock have not by the venue's."""
    behind_s = -(skew.seconds or 0.0)
    if behind_s > SETTLE_S - 1:
        raise OperationError(
            f"the clock of this machine is {behind_s:.0f} s ahead of that of {venue}: the last "
            "bars may still change; set the clock"
        )
