"""What KIS itself says of its trading days: asked once a day, kept for the next start."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import date
from pathlib import Path

import msgspec

from qts import telemetry
from qts.domain import Clock, OperationError
from qts.feed.calendar import SEOUL, Calendar

_LOOK_S = 600.0

log = telemetry.logger("feed")

Ask = Callable[[date], Awaitable[dict[date, bool]]]


class Known(msgspec.Struct, frozen=True):
    asked_on: date
    days: dict[date, bool]


class TradingDays:
    """Teaches a calendar; where KIS does not answer, the calendar's own table stands."""

    def __init__(self, path: Path, calendar: Calendar, clock: Clock, ask: Ask) -> None:
        self._path = path
        self._calendar = calendar
        self._clock = clock
        self._ask = ask
        self._known: Known | None = None

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
            known = Known(today, await self._ask(today))
        self._known = known
        for day, trades in known.days.items():
            self._calendar.learn(day, trades)
        if asked:
            self._keep(known)

    def _read(self) -> Known | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Known)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def _keep(self, known: Known) -> None:
        draft = self._path.with_suffix(".draft")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft.write_bytes(msgspec.json.encode(known))
            draft.rename(self._path)
        except OSError as error:
            log.error("the trading days could not be kept", reason=error.strerror)
