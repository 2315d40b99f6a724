"""KIS as a venue."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import date

from msgspec.structs import replace

from qts.brokers import (
    BrokerOptions,
    CalendarOptions,
    ConnectOptions,
    SimulatorOptions,
    SymbolForm,
)
from qts.brokers.config import kis_account, kis_environment
from qts.brokers.kis import KisBroker, KisOrderPreview
from qts.domain import AccountKey, Clock, OrderBook, RefusedError, Secret
from qts.feed import TradingCalendar
from qts.simulators import KisKey
from qts.venues import (
    Calendar,
    InstrumentSource,
    KisClient,
    KisConfig,
    KisHistory,
    KisHistoryRules,
    KisStream,
    Quote,
    RateLimitConfig,
    VenueLimits,
    connect_kis,
    fetch_kis_instruments,
    is_loopback,
    kis_limits,
    kis_market_data,
)

_SIMULATED = RateLimitConfig(per_second=18, per_minute=1000, per_day=1_000_000)


class _EveryDay(TradingCalendar):
    """Calendar of a simulator that is always open."""

    def trades_on(self, day: date) -> bool:  # noqa: ARG002 - as the calendar has it
        return True


class KisConnection:
    """A connected key; the feed and the broker share its one WebSocket."""

    def __init__(self, client: KisClient, options: ConnectOptions) -> None:
        calendar = _krx(options.calendar)
        self._client = client
        self._clock = options.clock
        self._stream: KisStream | None = None
        self.skew = client.skew
        self.preview = KisOrderPreview(client)
        self.history = KisHistory(client, calendar, options.clock)
        self.data = kis_market_data(
            client,
            calendar,
            calendar.set_trading_day,
            self._open_stream,
            multi=options.multi_quotes,
        )

    def broker(self, options: BrokerOptions) -> KisBroker:
        database, config, instruments = options
        return KisBroker(self._client, database, config, self._clock, instruments, self._stream)

    def _open_stream(
        self, on_quote: Callable[[Quote], None], on_book: Callable[[OrderBook], None]
    ) -> KisStream:
        self._stream = KisStream(self._client, self._clock, on_quote, on_book=on_book)
        return self._stream


class KisSimulatorProgram:
    """The KIS simulator as a program."""

    own_scan = True

    def is_needed(self, settings: KisConfig) -> bool:
        return settings.app_key is None and settings.url is None

    def is_used(self, settings: KisConfig) -> bool:
        return settings.app_key is not None and settings.app_key.reveal() == KisKey().app_key

    def command(self, options: SimulatorOptions) -> list[str]:
        port, seed, speed, symbols, takes_orders = options
        limits = f"{_SIMULATED.per_second}/{_SIMULATED.per_minute}/{_SIMULATED.per_day}"
        given = {"port": port, "seed": seed, "speed": speed, "symbols": symbols, "limits": limits}
        words = [f"--{name}={value}" for name, value in given.items()]
        always_open = ["--always-open"] if takes_orders else []
        return ["-m", "qts", "simulate", "kis", *words, *always_open]

    def settings(
        self, settings: KisConfig, url: str, stream_url: str, *, own_limits: bool
    ) -> KisConfig:
        key = KisKey()
        return replace(
            settings,
            app_key=Secret(key.app_key),
            app_secret=Secret(key.app_secret),
            account=Secret(key.account),
            hts_id=Secret(key.hts_id),
            url=url,
            stream_url=stream_url,
            limits=_SIMULATED if own_limits else settings.limits,
        )


class KisVenue:
    """KRX through the KIS Open API."""

    name, title = "kis", "KIS"
    settings = KisConfig
    symbol_form = SymbolForm(re.compile(r"[0-9A-Z]{6,7}", re.ASCII), "005930")
    has_indices = True
    simulator = KisSimulatorProgram()

    def environment(self, settings: KisConfig) -> str:
        return kis_environment(settings)

    def account(self, settings: KisConfig) -> AccountKey:
        return kis_account(settings)

    def instruments(self, settings: KisConfig, clock: Clock) -> InstrumentSource:  # noqa: ARG002 - the port
        environment = "simulator" if is_loopback(settings.master) else "real"
        return InstrumentSource(self.name, environment, lambda: fetch_kis_instruments(settings))

    def calendar(self, settings: KisConfig, options: CalendarOptions) -> TradingCalendar:  # noqa: ARG002 - the port
        kind = _EveryDay if options.every_day else TradingCalendar
        return kind(options.overrides, options.after_market)

    def limits(self, settings: KisConfig, *, multi_quotes: bool) -> VenueLimits:
        return kis_limits(settings, multi=multi_quotes)

    def history(self, settings: KisConfig, calendar: Calendar | None) -> KisHistoryRules:
        return KisHistoryRules(settings, _krx(calendar))

    @asynccontextmanager
    async def connect(
        self, settings: KisConfig, options: ConnectOptions
    ) -> AsyncIterator[KisConnection]:
        """Connect with the key, which quotes need too."""
        async with connect_kis(settings, options.home, options.clock) as client:
            yield KisConnection(client, options)


def _krx(calendar: Calendar | None) -> TradingCalendar:
    if isinstance(calendar, TradingCalendar):
        return calendar
    raise RefusedError(f"kis trades by the calendar of KRX, not by {calendar!r}")
