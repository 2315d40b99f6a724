"""What KIS itself says of its trading days: asked once a day, kept for the next start."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import date
from pathlib import Path

import msgspec

from qts import telemetry
from qts.domain import Clock, Failed
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

    async def run(self) -> None:
        """Until cancelled: look whether today was asked already, and ask if not."""
        while True:
            try:
                await self.learn()
            except Failed as error:
                log.warning("KIS did not tell its trading days", reason=str(error))
            await self._clock.sleep(_LOOK_S)

    async def learn(self) -> None:
        today = self._clock.now().astimezone(SEOUL).date()
        known = self._read()
        if known is None or known.asked_on != today:
            known = Known(today, await self._ask(today))
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = self._path.with_suffix(".draft")
            draft.write_bytes(msgspec.json.encode(known))
            draft.rename(self._path)
        for day, trades in known.days.items():
            self._calendar.learn(day, trades)

    def _read(self) -> Known | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Known)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
