"""Refresh of the instruments: at the start if the stored ones are old, then daily before the open.

start ──▶ stored rows ──due──▶ the venue's lists ──▶ stored ──▶ Instruments replaced
              │                      └─ cannot be had ──▶ the stored rows stay; retried
              └─ none, and no list ──▶ every symbol is unknown: no entries, exits only
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from qts import telemetry
from qts.domain import Clock, Instruments, OperationError, UnreachableError
from qts.feed.calendar import SEOUL
from qts.feed.instrument_store import InstrumentList, InstrumentStore, write_catalogue
from qts.venues import InstrumentSource

log = telemetry.logger("feed")

REFRESH_AFTER = timedelta(hours=7, minutes=50)  # of a day in Seoul: before the first orders
_CHECK_INTERVAL_S = 600.0
_RETRY_S = 2.0  # after a failure, then twice as long each time
_MIN_SHARE = 0.5  # a list that has lost more of its rows is taken as damaged


class InstrumentSync:
    """Keeps `instruments` at the newest list; `folders` get a catalogue file after each change."""

    def __init__(
        self,
        store: InstrumentStore,
        source: InstrumentSource,
        instruments: Instruments,
        clock: Clock,
        folders: Sequence[Path] = (),
    ) -> None:
        self._store = store
        self._source = source
        self._instruments = instruments
        self._clock = clock
        self._folders = folders
        self._failures = 0  # in a row

    async def start(self) -> None:
        """Load the stored instruments, and fetch the lists where they are old or a simulator's."""
        await self._load()
        if self._source.environment == "simulator" or await self._is_due():
            await self._try_refresh()

    async def run(self) -> None:
        """Refresh daily, until cancelled; soon again after a failure."""
        while True:
            pause_s = _RETRY_S * 2.0 ** (self._failures - 1) if self._failures else math.inf
            await self._clock.sleep(min(pause_s, _CHECK_INTERVAL_S))
            if self._failures or await self._is_due():
                await self._try_refresh()

    async def refresh(self) -> int:
        """Fetch and store the lists; return the number of instruments.

        Raises OperationError if they cannot be had.
        """
        venue, environment, fetch = self._source
        found = await fetch()
        listed = sum(not each.delisted for each in self._instruments if each.venue == venue)
        if environment == "real" and len(found) < listed * _MIN_SHARE:
            raise UnreachableError(
                f"the list of {venue} has {len(found)} instruments, and the one before {listed}"
            )
        await self._store.save(venue, environment, found, self._clock.now())
        await self._load()
        return len(found)

    async def _try_refresh(self) -> None:
        try:
            count = await self.refresh()
        except OperationError as error:
            event = (
                "instruments not refreshed; using the stored ones"
                if len(self._instruments)
                else "instruments not available; entries blocked"
            )
            self._failures += 1
            log.warning(event, venue=self._source.venue, error=str(error))
        else:
            self._failures = 0
            log.info("instruments refreshed", venue=self._source.venue, count=count)

    async def _load(self) -> None:
        venue, environment, _ = self._source
        loaded = await self._store.load(environment)
        # A symbol of two venues is this run's.
        self._instruments.replace(sorted(loaded, key=lambda each: each.venue == venue))
        own = [each for each in loaded if each.venue == venue]
        at = await self._store.refreshed_at(venue, environment)
        content = InstrumentList(
            venue=venue, environment=environment, refreshed_at=at, instruments=own
        )
        try:
            write_catalogue(content, self._folders if own else ())
        except OSError as error:
            log.warning("instrument catalogue not written", error=str(error))

    async def _is_due(self) -> bool:
        at = await self._store.refreshed_at(self._source.venue, self._source.environment)
        return at is None or list_day(at) != list_day(self._clock.now())


def list_day(at: datetime) -> int:
    """Return a number of the day whose list was the newest at a time."""
    return (at.astimezone(SEOUL) - REFRESH_AFTER).date().toordinal()
