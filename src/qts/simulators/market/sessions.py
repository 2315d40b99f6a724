"""Calendar of KRX: trading days, and the phase of the market at each second.

Seconds are counted in Korean time, which has no summer time: `day.toordinal() * 86400` is
midnight in Seoul.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from functools import lru_cache
from typing import Literal, NamedTuple

import holidays

Kind = Literal["opening", "regular", "closing", "close", "after", "closed"]

KST = timezone(timedelta(hours=9), "KST")
DAY_S = 86_400

AFTER_MARKET_SINCE = date(2026, 9, 14)
CSAT_DAYS = frozenset({date(2024, 11, 14), date(2025, 11, 13), date(2026, 11, 19)})


class Phase(NamedTuple):
    kind: Kind
    start: int
    end: int
    """The first second after it."""


CLOSED = Phase("closed", 0, 0)


def at(day: date, hours: int = 0, minutes: int = 0) -> int:
    return day.toordinal() * DAY_S + hours * 3600 + minutes * 60


def seconds_of(moment: datetime) -> int:
    """Return an aware datetime as seconds in Korean time."""
    local = moment.astimezone(KST)
    return at(local.date(), local.hour, local.minute) + local.second


def moment_of(seconds: int) -> datetime:
    return datetime.fromordinal(seconds // DAY_S).replace(tzinfo=KST) + timedelta(
        seconds=seconds % DAY_S
    )


def utc_ms(seconds: int) -> int:
    return round(moment_of(seconds).astimezone(UTC).timestamp() * 1000)


def hhmmss(seconds: int) -> str:
    second = seconds % DAY_S
    return f"{second // 3600:02}{second // 60 % 60:02}{second % 60:02}"


def yyyymmdd(seconds: int) -> str:
    return date.fromordinal(seconds // DAY_S).strftime("%Y%m%d")


@lru_cache(maxsize=400)
def is_open(day: date) -> bool:
    return day.weekday() < 5 and day not in _closures(day.year)


@lru_cache(maxsize=8)
def _closures(year: int) -> frozenset[date]:
    return frozenset(holidays.financial_holidays("XKRX", years=year))


def next_open(day: date) -> date:
    """Return the day itself or the first open one after it."""
    while not is_open(day):
        day += timedelta(days=1)
    return day


def opens_at(day: date) -> int:
    late = day in CSAT_DAYS or day == next_open(date(day.year, 1, 1))
    return at(day, 10 if late else 9)


@lru_cache(maxsize=16)
def phases(day: date) -> tuple[Phase, ...]:
    """Return the phases of a day in order; none on a closed day."""
    if not is_open(day):
        return ()
    opening = opens_at(day)
    closing = at(day, 16 if day in CSAT_DAYS else 15, 30)
    program = [
        Phase("opening", opening - 1800, opening),
        Phase("regular", opening, closing - 600),
        Phase("closing", closing - 600, closing),
        Phase("close", closing, closing + 1),
    ]
    if day >= AFTER_MARKET_SINCE:
        program.append(Phase("after", closing + 1800, at(day, 20)))
    return tuple(program)


def phase_at(seconds: int) -> Phase:
    for phase in phases(date.fromordinal(seconds // DAY_S)):
        if phase.start <= seconds < phase.end:
            return phase
    return CLOSED


def regular_at(seconds: int) -> Phase:
    """Return the phase of a market that trades at any hour of any day."""
    midnight = seconds - seconds % DAY_S
    return Phase("regular", midnight, midnight + DAY_S)


def next_phase_start(seconds: int) -> int:
    """Return the start of the next phase after this second."""
    day = date.fromordinal(seconds // DAY_S)
    for phase in phases(day):
        if phase.start > seconds:
            return phase.start
    return phases(next_open(day + timedelta(days=1)))[0].start
