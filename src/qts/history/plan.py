"""Plan of a download: which ranges each symbol lacks, how many requests, how long they take."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo

import msgspec

from qts.domain import Market, RefusedError, Timeframe
from qts.history.catalogue import BarCatalogue
from qts.history.catalogue_file import Series
from qts.history.ranges import Range, subtract
from qts.venues import HistoryRules

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
