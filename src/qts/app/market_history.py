"""Past bars of a venue for one command: from the venue of the settings, or from a simulator."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from qts import telemetry
from qts.app.simulated_venue import SimulatedVenue, uses_simulated_venue
from qts.app.venue import ChosenVenue
from qts.config import Config
from qts.domain import Clock, RefusedError, check_name
from qts.embedded import Home
from qts.feed import TradingCalendar, pyarrow_module
from qts.history import BarCatalogue, RecentBars
from qts.strategies import Strategy, bar_subscription
from qts.venues import BarHistory, HistoryRules

log = telemetry.logger("app")


def history_rules(config: Config, venue: str) -> HistoryRules:
    """Return what the venue offers with the key of the settings."""
    return ChosenVenue.of(config, venue).history_rules


def trading_calendar(config: Config) -> TradingCalendar:
    return TradingCalendar(config.feed.calendar_overrides)


def history_is_simulated(config: Config, venue: str) -> bool:
    """Return whether the bars come from a simulator: ours, or one at venues.*.url."""
    return _starts_simulator(config, venue) or history_rules(config, venue).simulated


def recent_bars(config: Config, history: BarHistory, home: Path, clock: Clock) -> RecentBars:
    """Return the reader of the bars before a run, with the client of the run.

    `home` is the folder of the catalogue. That of a simulator which the run starts itself ends with
    it: the next one has another past.
    """
    venue = config.feed.venue_name
    catalogue = BarCatalogue(home, simulated=history_is_simulated(config, venue))
    return RecentBars(history_rules(config, venue), history, catalogue, clock)


def has_catalogue(strategies: Iterable[Strategy[Any]]) -> bool:
    """Return whether the bars of a warm-up can be stored; log why not if one needs them."""
    if not any(bar_subscription(each).warm_up for each in strategies):
        return False
    try:
        pyarrow_module("pyarrow.parquet")
    except RefusedError as error:
        log.warning("no catalogue; strategies collect their warm-up live", reason=str(error))
        return False
    return True


@contextlib.asynccontextmanager
async def connect_history(
    config: Config, venue: str, home: Path, clock: Clock, symbols: Sequence[str]
) -> AsyncIterator[BarHistory]:
    """Connect to the venue; refuse symbols that it does not list, where it has a list."""
    async with contextlib.AsyncExitStack() as stack:
        chosen = ChosenVenue.of(config, venue)
        if _starts_simulator(config, venue):
            # Its own folder: a run on this home may have a simulator too.
            own = Home.at(home / "download")
            own.create_directories()
            # As if it took orders: a clock that is ours, so that its past ends now.
            simulator = stack.enter_context(
                SimulatedVenue(own, config.simulator, venue, takes_orders=True)
            )
            chosen = chosen._replace(
                settings=simulator.venue_settings(chosen.settings, own_limits=False)
            )
            home = simulator.keys
        history = (await stack.enter_async_context(chosen.connect(home, clock))).history
        if (listed := await history.symbols()) is not None:
            for symbol in symbols:
                check_name(f"{chosen.venue.title} symbol", symbol, listed)
        yield history


def _starts_simulator(config: Config, venue: str) -> bool:
    feed = msgspec.structs.replace(config.feed, venue=venue)
    return uses_simulated_venue(msgspec.structs.replace(config, feed=feed))
