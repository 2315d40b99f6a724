"""Profit of the day by strategy, for the live status and the metrics of a run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from qts import telemetry
from qts.dashboard.run_metrics import AccountSources
from qts.database import Database
from qts.domain import AccountKey
from qts.orders import (
    AccountState,
    StrategyFigures,
    StrategyProfit,
    add_up,
    load_owned_fills,
    merged_profits,
    strategy_profits,
)
from qts.pipeline import held_by

_REALISED = telemetry.gauge(
    "qts_strategy_realised_today_won", "realised profit of the day, after fees", ("strategy",)
)
_UNREALISED = telemetry.gauge(
    "qts_strategy_unrealised_won", "unrealised profit of its positions", ("strategy",)
)
_EXPOSURE = telemetry.gauge("qts_strategy_exposure_won", "value of its positions", ("strategy",))
_ORDERS = telemetry.gauge("qts_strategy_orders_today", "orders of the day", ("strategy",))
_REFUSED = telemetry.gauge(
    "qts_strategy_refusals", "reasons PreCheck and the gate gave in this run", ("strategy", "code")
)


class StrategyProfitReader:
    """Profits of the strategies of a run; fills are read again when the day's profit changes."""

    def __init__(self, database: Database, accounts: Sequence[AccountSources]) -> None:
        self._database = database
        self._accounts = accounts
        self._read: dict[AccountKey, tuple[datetime, Decimal]] = {}  # day and its profit
        self._figures: dict[AccountKey, dict[str, StrategyFigures]] = {}
        self._orders: dict[AccountKey, dict[str, int]] = {}

    async def update(self, key: AccountKey, state: AccountState, day: datetime) -> None:
        """Read the fills of the day of an account, unless those that are known still count."""
        self._orders[key] = dict(state.orders_of)
        if self._read.get(key) != (day, state.earned_today):
            fills = await load_owned_fills(self._database, key, day, day + timedelta(days=1))
            today = [each for each in fills if each[0]["counted"] and each[0]["traded_at"] >= day]
            self._figures[key] = add_up(today)
            self._read[key] = day, state.earned_today

    def collect(self) -> dict[str, StrategyProfit]:
        """Return the profits as they are now, by name, without a query."""
        return merged_profits(
            strategy_profits(
                self._figures.get(each.key, {}),
                held_by(each.portfolio),
                self._orders.get(each.key, {}),
                each.all_refused,
            )
            for each in self._accounts
        )

    def export(self) -> None:
        """Set the gauges."""
        for gauge in (_REALISED, _UNREALISED, _EXPOSURE, _ORDERS, _REFUSED):
            gauge.clear()
        for name, profit in self.collect().items():
            _REALISED.labels(name).set(float(profit.realised))
            _UNREALISED.labels(name).set(float(profit.unrealised))
            _EXPOSURE.labels(name).set(float(profit.exposure))
            _ORDERS.labels(name).set(profit.orders)
            for code, count in profit.refusals.items():
                _REFUSED.labels(name, code).set(count)
