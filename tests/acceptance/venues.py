"""A simulator that outlives the runs on it: the settings of a run, and its own record."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from qts.simulators import (
    KisKey,
    KisSimulator,
    KisSimulatorConfig,
    MarketConfig,
    RequestLimits,
    UpbitKey,
    UpbitSimulator,
    UpbitSimulatorConfig,
)
from qts.simulators.kis.orders import day_of

LIMIT = "60000"
COIN = Decimal(10**8)


class VenueOrder(NamedTuple):
    """Order as the simulator recorded it; KIS has no client order id."""

    client_order_id: str | None
    symbol: str
    side: str
    quantity: Decimal
    filled: Decimal


class SimulatedAccount:
    """A simulator with one account."""

    def __init__(self, simulator: Any, name: str) -> None:
        self.simulator, self.name = simulator, name
        (customer,) = simulator.gateway.customers.values()
        self.account = customer.account
        self._unit = COIN if name == "upbit" else Decimal(1)

    @property
    def order_path(self) -> str:
        stocks = "/uapi/domestic-stock/v1/trading/order-cash"
        return "/v1/orders" if self.name == "upbit" else stocks

    def orders(self) -> dict[str, VenueOrder]:
        """Return every order that the venue took, by the id that it has in our ledger."""
        if self.name == "upbit":
            entries = self.simulator.orders.entries.values()
            return {each.uuid: self._order(each, each.identifier) for each in entries}
        return {
            f"{day_of(each)}-{each.number}": self._order(each, None)
            for each in self.simulator.orders.entries
            if each.kind != "cancel"
        }

    def _order(self, entry: Any, client_order_id: str | None) -> VenueOrder:
        order = entry.order
        return VenueOrder(
            client_order_id,
            self.simulator.market.universe.codes[order.index],
            order.side.upper(),
            order.quantity / self._unit,
            order.filled / self._unit,
        )

    def holdings(self) -> dict[str, Decimal]:
        codes = self.simulator.market.universe.codes
        return {
            codes[index]: holding.quantity / self._unit
            for index, holding in self.account.holdings.items()
            if holding.quantity
        }

    def settings(self, folder: Path) -> dict[str, str]:
        """Return the settings of a run on this account."""
        symbols = folder / "symbols"
        symbols.write_text("\n".join(self.simulator.symbols()))
        url, stream = self.simulator.url, self.simulator.ws_url
        common = {
            "QTS_BROKERS__BROKER": self.name,
            "QTS_FEED__VENUE": self.name,
            "QTS_FEED__SYMBOLS": str(symbols),
            "QTS_FEED__ALWAYS_OPEN": "true",
            "QTS_FEED__INTERVAL_S": "1",
            "QTS_ORDERS__RECONCILE_EVERY_S": "2",
        }
        if self.name == "upbit":
            coins = UpbitKey()
            return common | {
                "QTS_VENUES__UPBIT__ACCESS_KEY": coins.access_key,
                "QTS_VENUES__UPBIT__SECRET_KEY": coins.secret_key,
                "QTS_VENUES__UPBIT__URL": url,
                "QTS_VENUES__UPBIT__STREAM_URL": f"{stream}/websocket/v1",
            }
        stocks = KisKey()
        return common | {
            "QTS_VENUES__KIS__APP_KEY": stocks.app_key,
            "QTS_VENUES__KIS__APP_SECRET": stocks.app_secret,
            "QTS_VENUES__KIS__ACCOUNT": stocks.account,
            "QTS_VENUES__KIS__HTS_ID": stocks.hts_id,
            "QTS_VENUES__KIS__URL": url,
            "QTS_VENUES__KIS__STREAM_URL": stream,
            "QTS_VENUES__KIS__LIMITS__PER_SECOND": "100",
            "QTS_VENUES__KIS__LIMITS__PER_MINUTE": LIMIT,
            "QTS_VENUES__KIS__LIMITS__PER_DAY": LIMIT,
        }


@asynccontextmanager
async def simulated_account(name: str, market: MarketConfig) -> AsyncIterator[SimulatedAccount]:
    """Start a simulator without rate limits."""
    if name == "upbit":
        rates: Any = dict.fromkeys(("order_second", "default_second", "quotation_second"), 100_000)
        async with UpbitSimulator(UpbitSimulatorConfig(market=market, **rates)) as coins:
            yield SimulatedAccount(coins, name)
    else:
        none = RequestLimits(second=0, minute=0, day=0)
        config = KisSimulatorConfig(market=market, limits=none, token_interval_s=0.0)
        async with KisSimulator(config) as stocks:
            yield SimulatedAccount(stocks, name)
