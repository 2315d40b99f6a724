"""What the feed prices first: positions, and orders from the moment they are submitted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from qts import telemetry
from qts.database import Database
from qts.domain import AccountKey, Clock, OperationError
from qts.orders import symbols_on_order
from qts.pipeline.portfolio import Portfolio

UPDATE_INTERVAL_S = 0.1
ORDERS_INTERVAL_S = 1.0
SUBMITTED_S = 5.0  # until the ledger shows the order, or that there is none

log = telemetry.logger("pipeline")
_AGE = telemetry.gauge(
    "qts_position_price_age_seconds",
    "Seconds since the price of a position was last confirmed, in the trading session.",
    ("symbol",),
)


class PricedFeed(Protocol):
    """What the list needs of the feed."""

    def watch(self, symbols: Sequence[str], on_order: Collection[str]) -> None: ...
    def price_age_s(self, symbol: str) -> float | None: ...


class WatchList:
    """Keeps the feed's watched symbols equal to what is held or on order; for one event loop."""

    def __init__(self, portfolio: Portfolio, feed: PricedFeed, clock: Clock) -> None:
        self._portfolio = portfolio
        self._feed = feed
        self._clock = clock
        self._submitted: dict[str, int] = {}
        self._on_order: list[str] = []
        self._watched: list[str] = []
        self._with_books: set[str] = set()
        self._exported: set[str] = set()

    def submitted(self, symbol: str) -> None:
        """Watch the symbol of an order that was just submitted."""
        self._submitted[symbol] = self._clock.monotonic_ns()
        self.update()

    def update(self) -> None:
        """Pass the symbols on if they changed: the largest positions first, then orders.

        Stop orders that wait come last.
        """
        now = self._clock.monotonic_ns()
        self._submitted = {
            symbol: at for symbol, at in self._submitted.items() if now - at < SUBMITTED_S * 1e9
        }
        portfolio = self._portfolio
        held = sorted(
            (each for each in portfolio.positions.values() if each.quantity),
            key=lambda each: -abs(each.quantity * portfolio.price(each)),
        )
        symbols = [each.symbol for each in held]
        waiting = [each.symbol for each in portfolio.orders.values() if each.trigger is not None]
        watched = list(dict.fromkeys([*symbols, *self._submitted, *self._on_order, *waiting]))
        on_order = {*self._submitted, *self._on_order}
        if set(watched) != set(self._watched) or on_order != self._with_books:
            self._feed.watch(watched, on_order)
            self._watched, self._with_books = watched, on_order

    async def run(self, database: Database, key: AccountKey) -> None:
        """Follow positions and open orders until cancelled."""
        due_ns = 0
        while True:
            if self._clock.monotonic_ns() >= due_ns:
                due_ns = self._clock.monotonic_ns() + round(ORDERS_INTERVAL_S * 1e9)
                await self._read_orders(database, key)
                self._export_ages()
            self.update()
            await self._clock.sleep(UPDATE_INTERVAL_S)

    async def _read_orders(self, database: Database, key: AccountKey) -> None:
        try:
            self._on_order = await symbols_on_order(database, key)
        except OperationError as error:
            if due := telemetry.log_every(10.0, "watch-list"):
                text = "open orders not read; the last ones are watched"
                log.warning(text, error=str(error), **due)

    def _export_ages(self) -> None:
        held = {each.symbol for each in self._portfolio.positions.values() if each.quantity}
        ages = {symbol: self._feed.price_age_s(symbol) for symbol in held}
        known = {symbol: age for symbol, age in ages.items() if age is not None}
        for symbol in self._exported - known.keys():
            _AGE.remove(symbol)
        for symbol, age in known.items():
            _AGE.labels(symbol).set(age)
        self._exported = set(known)
