"""When the market trades: holidays from a library, hours from a table, KIS has the last word.

What KIS itself says of its trading days: asked once a day, kept for the next start.
"""

from __future__ import annotations

import functools
import importlib.resources
import tomllib
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from pathlib import Path
from typing import NamedTuple

import holidays
import msgspec

from qts import telemetry
from qts.domain import Clock, OperationError, RefusedError

SEOUL = timezone(timedelta(hours=9), "KST")  # no summer time since 1988
_LOOK_AHEAD_DAYS = 31


class TradingSession(NamedTuple):
    """A stretch of one trading day."""

    name: str
    opens_at: datetime
    closes_at: datetime

    @property
    def seconds(self) -> float:
        return (self.closes_at - self.opens_at).total_seconds()


class Hours(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    opens: time
    closes: time
    since: date = date.min


class Day(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    date: date
    why: str = ""
    closed: bool = False
    sessions: list[Hours] = []


class FirstDay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    late_s: int = 0
    sessions: list[str] = []
    keeps_close: list[str] = []


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    session: list[Hours] = []
    day: list[Day] = []
    first_day: FirstDay = FirstDay()


class TradingCalendar:
    """Trading days and sessions of KRX. Moments may be in any timezone."""

    def __init__(self, overrides: Path | None = None, after_market: bool = False) -> None:
        own = _read_table(overrides) if overrides else Table()
        shipped = _shipped()
        self._sessions = shipped.session + own.session
        self._days = {day.date: day for day in [*shipped.day, *own.day]}
        self._first_day = shipped.first_day
        self._watched = {"regular", "after-market"} if after_market else {"regular"}
        self._learned: dict[date, bool] = {}

    def learn(self, day: date, trades: bool) -> None:
        """What the venue itself says of a day; it overrules everything else."""
        self._learned[day] = trades

    def trades_on(self, day: date) -> bool:
        if day in self._learned:
            return self._learned[day]
        if day in self._days:
            return not self._days[day].closed
        return day.weekday() < 5 and day not in _closures(day.year)

    def sessions(self, day: date) -> list[TradingSession]:
        """All sessions of a day, in their order; none when the market is closed."""
        if not self.trades_on(day):
            return []
        special = {hours.name: hours for hours in self._days.get(day, Day(day)).sessions}
        late = self._is_first_day(day) and not special
        return sorted(
            (
                self._session(special.get(hours.name, hours), day, late)
                for hours in self._sessions
                if hours.since <= day
            ),
            key=lambda session: session.opens_at,
        )

    def current(self, now: datetime) -> TradingSession | None:
        """The watched session that runs now."""
        return next(
            (each for each in self._watched_on(_day(now)) if each.opens_at <= now < each.closes_at),
            None,
        )

    def seconds_left(self, now: datetime) -> float:
        """Trading seconds still to come today in the watched sessions."""
        return sum(
            max(0.0, (each.closes_at - max(now, each.opens_at)).total_seconds())
            for each in self._watched_on(_day(now))
        )

    def next_open(self, now: datetime) -> TradingSession:
        """The watched session that runs, or the next that will."""
        for ahead in range(_LOOK_AHEAD_DAYS):
            for session in self._watched_on(_day(now) + timedelta(days=ahead)):
                if now < session.closes_at:
                    return session
        raise RefusedError(
            f"the calendar knows no trading day in the {_LOOK_AHEAD_DAYS} days to come"
        )

    def _watched_on(self, day: date) -> list[TradingSession]:
        return [session for session in self.sessions(day) if session.name in self._watched]

    def _session(self, hours: Hours, day: date, late: bool) -> TradingSession:
        rule = self._first_day
        shift = timedelta(seconds=rule.late_s if late and hours.name in rule.sessions else 0)
        opens = datetime.combine(day, hours.opens, SEOUL) + shift
        closes = datetime.combine(day, hours.closes, SEOUL)
        if hours.name not in rule.keeps_close:
            closes += shift
        return TradingSession(hours.name, opens.astimezone(UTC), closes.astimezone(UTC))

    def _is_first_day(self, day: date) -> bool:
        earlier = (date(day.year, 1, 1) + timedelta(days=n) for n in range(day.timetuple().tm_yday))
        return next((each for each in earlier if self.trades_on(each)), None) == day


def _day(now: datetime) -> date:
    return now.astimezone(SEOUL).date()


@functools.cache
def _closures(year: int) -> frozenset[date]:
    return frozenset(holidays.financial_holidays("XKRX", years=year))


@functools.cache
def _shipped() -> Table:
    text = importlib.resources.files("qts.feed").joinpath("sessions.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), Table)


def _read_table(path: Path) -> Table:
    try:
        return msgspec.convert(tomllib.loads(path.read_text("utf-8")), Table)
    except (OSError, ValueError) as error:  # of the file, of TOML, of the table's form
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RefusedError(
            f"feed.calendar_overrides, {path}: {reason}; expected [[day]] with date, and closed or "
            f"sessions"
        ) from None


_LOOK_S = 600.0

log = telemetry.logger("feed")

Ask = Callable[[date], Awaitable[dict[date, bool]]]


class KnownTradingDays(msgspec.Struct, frozen=True):
    asked_on: date
    days: dict[date, bool]


class TradingDaySync:
    """Teaches a calendar; where KIS does not answer, the calendar's own table stands."""

    def __init__(self, path: Path, calendar: TradingCalendar, clock: Clock, ask: Ask) -> None:
        self._path = path
        self._calendar = calendar
        self._clock = clock
        self._ask = ask
        self._known: KnownTradingDays | None = None

    async def run(self) -> None:
        """Until cancelled: look whether today was asked already, and ask if not."""
        while True:
            try:
                await self.learn()
            except OperationError as error:
                log.warning("KIS did not tell its trading days", reason=str(error))
            await self._clock.sleep(_LOOK_S)

    async def learn(self) -> None:
        today = self._clock.now().astimezone(SEOUL).date()
        known = self._known or self._read()
        asked = known is None or known.asked_on != today
        if known is None or asked:
            known = KnownTradingDays(today, await self._ask(today))
        self._known = known
        for day, trades in known.days.items():
            self._calendar.learn(day, trades)
        if asked:
            self._keep(known)

    def _read(self) -> KnownTradingDays | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=KnownTradingDays)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def _keep(self, known: KnownTradingDays) -> None:
        draft = self._path.with_suffix(".draft")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft.write_bytes(msgspec.json.encode(known))
            draft.rename(self._path)
        except OSError as error:
            log.error("the trading days could not be kept", reason=error.strerror)
