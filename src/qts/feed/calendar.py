"""Trading calendar of KRX: holidays from a library, hours from a table, trading days from KIS."""

from __future__ import annotations

import functools
import importlib.resources
import tomllib
from datetime import UTC, date, datetime, time, timedelta, timezone
from pathlib import Path

import msgspec

from qts import telemetry
from qts.domain import Clock, OperationError, RefusedError
from qts.venues import PublishedDays, TradingSession

SEOUL = timezone(timedelta(hours=9), "KST")  # no summer time since 1988
_MAX_DAYS_AHEAD = 31


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
    """Trading days and sessions of KRX. Times may be in any timezone."""

    def __init__(self, overrides: Path | None = None, after_market: bool = False) -> None:
        overrides_table = _read_table(overrides) if overrides else Table()
        builtin = _builtin_table()
        self._sessions = builtin.session + overrides_table.session
        self._days = {day.date: day for day in [*builtin.day, *overrides_table.day]}
        self._first_day = builtin.first_day
        self._session_names = {"regular", "after-market"} if after_market else {"regular"}
        self._venue_days: dict[date, bool] = {}

    def set_trading_day(self, day: date, trades: bool) -> None:
        """Set whether the venue trades on a day; overrides everything else."""
        self._venue_days[day] = trades

    def trades_on(self, day: date) -> bool:
        if day in self._venue_days:
            return self._venue_days[day]
        if day in self._days:
            return not self._days[day].closed
        return day.weekday() < 5 and day not in _closures(day.year)

    def sessions(self, day: date) -> list[TradingSession]:
        """Return all sessions of a day in order; none when the market is closed."""
        if not self.trades_on(day):
            return []
        special = {hours.name: hours for hours in self._days.get(day, Day(day)).sessions}
        is_late = self._is_first_day(day) and not special
        return sorted(
            (
                self._session(special.get(hours.name, hours), day, is_late)
                for hours in self._sessions
                if hours.since <= day
            ),
            key=lambda session: session.opens_at,
        )

    def current(self, now: datetime) -> TradingSession | None:
        """Return the followed session that is open now."""
        sessions = self._sessions_on(_day(now))
        return next((each for each in sessions if each.opens_at <= now < each.closes_at), None)

    def seconds_left(self, now: datetime) -> float:
        """Return the trading seconds left today in the followed sessions."""
        return sum(
            max(0.0, (session.closes_at - max(now, session.opens_at)).total_seconds())
            for session in self._sessions_on(_day(now))
        )

    def next_open(self, now: datetime) -> TradingSession:
        """Return the followed session that is open, or the next one."""
        for days in range(_MAX_DAYS_AHEAD):
            for session in self._sessions_on(_day(now) + timedelta(days=days)):
                if now < session.closes_at:
                    return session
        raise RefusedError(f"the calendar has no trading day in the next {_MAX_DAYS_AHEAD} days")

    def closes_at(self, day: date) -> datetime | None:
        """Return the close of the last followed session of a day; None without trading."""
        return max((each.closes_at for each in self._sessions_on(day)), default=None)

    def _sessions_on(self, day: date) -> list[TradingSession]:
        return [session for session in self.sessions(day) if session.name in self._session_names]

    def _session(self, hours: Hours, day: date, is_late: bool) -> TradingSession:
        rule = self._first_day
        shift = timedelta(seconds=rule.late_s if is_late and hours.name in rule.sessions else 0)
        opens = datetime.combine(day, hours.opens, SEOUL) + shift
        closes = datetime.combine(day, hours.closes, SEOUL)
        if hours.name not in rule.keeps_close:
            closes += shift
        return TradingSession(hours.name, opens.astimezone(UTC), closes.astimezone(UTC))

    def _is_first_day(self, day: date) -> bool:
        earlier = (date(day.year, 1, 1) + timedelta(days=n) for n in range(day.timetuple().tm_yday))
        return next((other for other in earlier if self.trades_on(other)), None) == day


def _day(now: datetime) -> date:
    return now.astimezone(SEOUL).date()


@functools.cache
def _closures(year: int) -> frozenset[date]:
    import holidays  # on first use: it loads the calendars of every country

    return frozenset(holidays.financial_holidays("XKRX", years=year))


@functools.cache
def _builtin_table() -> Table:
    text = importlib.resources.files("qts.feed").joinpath("sessions.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), Table)


def _read_table(path: Path) -> Table:
    try:
        return msgspec.convert(tomllib.loads(path.read_text("utf-8")), Table)
    except (OSError, ValueError) as error:  # from the file, TOML or the schema
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RefusedError(
            f"feed.calendar_overrides, {path}: {reason}; expected [[day]] with date, and closed or "
            f"sessions"
        ) from None


_CHECK_INTERVAL_S = 600.0

log = telemetry.logger("feed")


class KnownTradingDays(msgspec.Struct, frozen=True):
    asked_on: date
    days: dict[date, bool]


class TradingDaySync:
    """Daily update of a calendar from its venue; if that fails, the calendar's table applies."""

    def __init__(self, path: Path, days: PublishedDays, clock: Clock) -> None:
        self._path = path
        self._fetch, self._set_day = days
        self._clock = clock
        self._known: KnownTradingDays | None = None

    async def run(self) -> None:
        """Fetch the trading days once a day, until cancelled."""
        while True:
            try:
                await self.sync()
            except OperationError as error:
                log.warning("trading days not fetched; using the calendar", error=str(error))
            await self._clock.sleep(_CHECK_INTERVAL_S)

    async def sync(self) -> None:
        today = self._clock.now().astimezone(SEOUL).date()
        known = self._known or self._read()
        is_stale = known is None or known.asked_on != today
        if known is None or is_stale:
            known = KnownTradingDays(today, await self._fetch(today))
        self._known = known
        for day, trades in known.days.items():
            self._set_day(day, trades)
        if is_stale:
            self._save(known)

    def _read(self) -> KnownTradingDays | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=KnownTradingDays)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def _save(self, known: KnownTradingDays) -> None:
        draft = self._path.with_suffix(".draft")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft.write_bytes(msgspec.json.encode(known))
            draft.rename(self._path)
        except OSError as error:
            log.error("trading days not saved", error=error.strerror)
