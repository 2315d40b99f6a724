"""A rehearsal with the connection, broker and lease that a run would use."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple, Protocol

from msgspec.structs import replace

import qts
from qts.app.account_configs import SimulatedVenue
from qts.app.servers import open_database, resolve_home
from qts.app.venue import ChosenVenue
from qts.brokers import (
    ACKNOWLEDGEMENT,
    AccountLease,
    BrokerOptions,
    Rehearsal,
    RehearsalEnd,
    RehearsalStart,
    RehearsalStep,
    Transcript,
    key_digest,
    mask_secrets,
    venue_of,
)
from qts.brokers.rehearsal import RehearsalParts
from qts.brokers.rehearsal_orders import RehearsalTimes
from qts.config import Config
from qts.database import migrate
from qts.domain import Clock, Instruments, RefusedError
from qts.embedded import EmbeddedConfig, Home

REHEARSALS = "rehearsals"  # folder in the home
SIMULATED_SYMBOLS = 50


class RehearsalOptions(NamedTuple):
    """What a rehearsal is to do; without a symbol it uses the example of the venue."""

    symbol: str | None = None
    simulated: bool = False
    fill: bool = False
    times: RehearsalTimes = RehearsalTimes()


class RehearsalListener(Protocol):
    """Operator of a rehearsal."""

    def began(self, account: str, environment: str, transcript: Path | None) -> None: ...
    async def confirm(self, step: str, text: str) -> bool: ...
    def done(self, step: RehearsalStep) -> None: ...


async def rehearse(
    config: Config,
    venue: str,
    options: RehearsalOptions,
    listener: RehearsalListener,
    clock: Clock,
) -> Path:
    """Rehearse the account of a venue; return the transcript, which is complete.

    Raises RefusedError before anything was sent, and the error that stopped it afterwards.
    """
    folder = resolve_home(config).path / REHEARSALS
    async with contextlib.AsyncExitStack() as stack:
        own = _own_config(config, venue)
        if options.simulated:
            own = await stack.enter_async_context(_simulated(own, venue))
        chosen = _chosen(own, venue)
        symbol = options.symbol or chosen.venue.symbol_form.example
        parts = await stack.enter_async_context(_connected(chosen, symbol, options.times, clock))
        start = RehearsalStart(
            at=clock.now(),
            version=qts.__version__,
            venue=venue,
            environment=chosen.environment,
            account=str(parts.broker.key),
            key=key_digest(chosen.venue, chosen.settings),
            symbol=symbol,
            fill=options.fill,
        )
        transcript = stack.enter_context(Transcript(folder, start))
        listener.began(parts.broker.key.short, chosen.environment, transcript.path)

        def record(step: RehearsalStep) -> None:
            step = _masked(step, chosen)
            transcript.add(step)
            listener.done(step)

        try:
            await Rehearsal(parts, listener.confirm, record).run(fill=options.fill)
        except BaseException as error:
            reason = mask_secrets(str(error) or "interrupted", chosen.settings)
            transcript.add(RehearsalEnd(at=clock.now(), complete=False, reason=reason))
            raise
        transcript.add(RehearsalEnd(at=clock.now(), complete=True))
        return transcript.path


async def check_key(
    config: Config,
    venue: str,
    options: RehearsalOptions,
    listener: RehearsalListener,
    clock: Clock,
) -> None:
    """Make the steps of a rehearsal that place nothing; raise what stopped them."""
    chosen = _chosen(_own_config(config, venue), venue)
    symbol = options.symbol or chosen.venue.symbol_form.example
    async with _connected(chosen, symbol, options.times, clock) as parts:
        listener.began(parts.broker.key.short, chosen.environment, None)
        record = lambda step: listener.done(_masked(step, chosen))  # noqa: E731
        await Rehearsal(parts, listener.confirm, record).check()


def _masked(step: RehearsalStep, chosen: ChosenVenue) -> RehearsalStep:
    return replace(step, answer=mask_secrets(step.answer, chosen.settings))


def _own_config(config: Config, venue: str) -> Config:
    """Return the settings of a run on this venue alone, whose orders go to it."""
    return replace(
        config,
        feed=replace(config.feed, venue=venue),
        brokers=replace(config.brokers, broker=venue),
    )


def _chosen(config: Config, venue: str) -> ChosenVenue:
    """Return the venue, with the consent to orders of real money, which the operator confirms."""
    chosen = ChosenVenue.of(config, venue)
    simulator = chosen.venue.simulator
    if simulator is not None and simulator.is_needed(chosen.settings):
        raise RefusedError(
            f"venues.{venue} has no key; run qts setup {venue}, or add --simulated to rehearse on"
            " the simulator"
        )
    if chosen.environment != "real":
        return chosen
    consent = {"mode": "live", "live_acknowledgement": ACKNOWLEDGEMENT}
    live = replace(config, brokers=replace(config.brokers, **consent))
    return chosen._replace(config=live)


@contextlib.asynccontextmanager
async def _connected(
    chosen: ChosenVenue, symbol: str, times: RehearsalTimes, clock: Clock
) -> AsyncIterator[RehearsalParts]:
    """Lock the account and connect to its venue."""
    config = chosen.config
    home = resolve_home(config)
    key = chosen.venue.account(chosen.settings)
    async with contextlib.AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(config))
        await migrate(database)
        is_live = config.brokers.mode == "live"
        lease = AccountLease(database, key, str(home.path), clock, is_live=is_live)
        await stack.enter_async_context(lease)
        await lease.wait_quiet()
        connection = await stack.enter_async_context(chosen.connect(home.path, clock))
        instruments = Instruments(await chosen.instruments(clock).fetch())
        instruments.check(symbol)
        if block := instruments.entry_block(symbol):
            raise RefusedError(f"--symbol {symbol}: {block}; name another one")
        connection.skew.max_s = config.venues.max_skew_s
        yield RehearsalParts(
            broker=connection.broker(BrokerOptions(database, config.brokers, instruments)),
            preview=connection.preview,
            data=connection.data,
            calendar=None if config.feed.always_open else chosen.calendar,
            skew=connection.skew,
            lease=lease,
            instrument=instruments[symbol],
            clock=clock,
            times=times,
        )


@contextlib.asynccontextmanager
async def _simulated(config: Config, venue: str) -> AsyncIterator[Config]:
    """Return the settings of a simulator with a throw-away home: its orders are in no ledger."""
    with tempfile.TemporaryDirectory(prefix="qts-rehearsal-") as folder:
        home = Home.at(Path(folder))
        home.create_directories()
        given = replace(config.simulator, port=0, symbols=SIMULATED_SYMBOLS)
        # Nothing of the key, the hosts or the servers in the settings.
        defaults = {venue: venue_of(venue).settings()}
        own = replace(
            config,
            home=home.path,
            venues=replace(config.venues, **defaults),
            database=replace(config.database, url=None),
            embedded=EmbeddedConfig(),
        )
        simulated = SimulatedVenue(home, given, venue, takes_orders=True)
        await asyncio.to_thread(simulated.__enter__)
        try:
            yield await asyncio.to_thread(simulated.settings, own)
        finally:
            await asyncio.to_thread(simulated.__exit__)
