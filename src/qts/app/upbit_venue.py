"""Upbit as a venue."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec.structs import replace

from qts.brokers import (
    BrokerOptions,
    CalendarOptions,
    ConnectOptions,
    SimulatorOptions,
    SymbolForm,
)
from qts.brokers.config import upbit_account, upbit_environment
from qts.brokers.upbit import UpbitBroker, UpbitOrderPreview
from qts.domain import AccountKey, Clock, RefusedError, Secret
from qts.simulators import UpbitKey
from qts.venues import (
    Calendar,
    InstrumentSource,
    UpbitClient,
    UpbitConfig,
    UpbitHistory,
    UpbitHistoryRules,
    VenueLimits,
    fetch_upbit_instruments,
    is_loopback,
    upbit_limits,
    upbit_market_data,
)

_MARKETS = 200  # the most that one request takes


class UpbitConnection:
    """A connected client, with the key of an account if it takes orders."""

    def __init__(self, client: UpbitClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self.skew = client.skew
        self.preview = UpbitOrderPreview(client)
        self.history = UpbitHistory(client)
        self.data = upbit_market_data(client, clock)

    def broker(self, options: BrokerOptions) -> UpbitBroker:
        return UpbitBroker(self._client, options.config, self._clock, options.database)


class UpbitSimulatorProgram:
    """The Upbit simulator as a program."""

    own_scan = False

    def is_needed(self, settings: UpbitConfig) -> bool:
        return settings.access_key is None and settings.url == UpbitConfig().url

    def is_used(self, settings: UpbitConfig) -> bool:
        key = settings.access_key
        return key is not None and key.reveal() == UpbitKey().access_key

    def command(self, options: SimulatorOptions) -> list[str]:
        port, seed, speed, symbols, _ = options
        given = {"port": port, "seed": seed, "speed": speed, "symbols": min(symbols, _MARKETS)}
        words = [f"--{name}={value}" for name, value in given.items()]
        return ["-m", "qts", "simulate", "upbit", *words]

    def settings(
        self,
        settings: UpbitConfig,
        url: str,
        stream_url: str,
        *,
        own_limits: bool,  # noqa: ARG002 - its limits are those of Upbit
    ) -> UpbitConfig:
        key = UpbitKey()
        return replace(
            settings,
            access_key=Secret(key.access_key),
            secret_key=Secret(key.secret_key),
            url=url,
            stream_url=f"{stream_url}/websocket/v1",
        )


class UpbitVenue:
    """The won market of Upbit, which never closes."""

    name, title = "upbit", "Upbit"
    settings = UpbitConfig
    symbol_form = SymbolForm(re.compile(r"[A-Z]{3,4}-[0-9A-Z]+", re.ASCII), "KRW-BTC")
    has_indices = False
    simulator = UpbitSimulatorProgram()

    def environment(self, settings: UpbitConfig) -> str:
        if is_loopback(settings.url) != is_loopback(settings.stream_url):
            raise RefusedError(
                f"venues.upbit.url is {settings.url} and venues.upbit.stream_url is"
                f" {settings.stream_url}; expected both at Upbit, or both at a simulator"
            )
        return upbit_environment(settings)

    def account(self, settings: UpbitConfig) -> AccountKey:
        return upbit_account(settings)

    def instruments(self, settings: UpbitConfig, clock: Clock) -> InstrumentSource:
        environment = upbit_environment(settings)
        fetch = lambda: fetch_upbit_instruments(settings, clock)  # noqa: E731
        return InstrumentSource(self.name, environment, fetch)

    def calendar(self, settings: UpbitConfig, options: CalendarOptions) -> None:
        """Return None: won markets never close."""

    def limits(self, settings: UpbitConfig, *, multi_quotes: bool) -> VenueLimits:  # noqa: ARG002 - the port
        return upbit_limits(settings)

    def history(self, settings: UpbitConfig, calendar: Calendar | None) -> UpbitHistoryRules:  # noqa: ARG002 - the port
        return UpbitHistoryRules(settings)

    @asynccontextmanager
    async def connect(
        self, settings: UpbitConfig, options: ConnectOptions
    ) -> AsyncIterator[UpbitConnection]:
        """Connect; without orders without the key, so that no request can be signed."""
        if not options.takes_orders:
            settings = replace(settings, access_key=None, secret_key=None)
        async with UpbitClient.open(settings, options.clock) as client:
            yield UpbitConnection(client, options.clock)
