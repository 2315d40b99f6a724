"""Positions of a run: loaded from the ledger at the start, then pushed to the stops."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from decimal import Decimal

from qts.brokers import Broker
from qts.database import Database
from qts.domain import AccountKey, Market, Position, market_for_symbol
from qts.orders import FillApplied, list_positions
from qts.pipeline.portfolio import Portfolio
from qts.risk import MicroRiskLoop, PositionShadow
from qts.strategies import StrategyKind

LOTS = {Market.KRX: 1.0, Market.UPBIT: 1e-8}  # smallest quantity that can be sold
_OWNERS = (
    "SELECT DISTINCT ON (i.symbol) i.symbol, i.strategy_key FROM order_intent i"
    " JOIN position p ON p.broker = i.broker AND p.account = i.account AND p.symbol = i.symbol"
    " AND p.quantity <> 0"
    " WHERE i.broker = $1 AND i.account = $2 AND i.intent_type = 'ENTRY'"
    " ORDER BY i.symbol, i.created_at DESC"
)

_PENDING = (
    "SELECT EXISTS (SELECT FROM order_intent"
    " WHERE broker = $1 AND account = $2 AND symbol = $3 AND status = 'CREATED')"
)


class PositionSync:
    """Keeps portfolio and stops on the same positions; `loaded` is set once they are known.

    `kinds` maps a strategy's key to its kind, which decides its stops.
    """

    def __init__(
        self, portfolio: Portfolio, micro_risk: MicroRiskLoop, kinds: Mapping[str, StrategyKind]
    ) -> None:
        self._portfolio = portfolio
        self._micro_risk = micro_risk
        self._kinds = kinds
        self._fills = self._submitted = 0
        self._ledger: tuple[Database, AccountKey] | None = None
        self.loaded = asyncio.Event()

    async def load(self, database: Database, broker: Broker) -> None:
        account = await broker.account()
        positions = await list_positions(database, broker.key)
        self._portfolio.load(
            account.cash,
            [Position(row.symbol, row.quantity, row.average_price) for row in positions],
        )
        for symbol, key in await database.fetch(_OWNERS, *broker.key):
            self._portfolio.set_owner(symbol, key)
        self._ledger = database, broker.key
        self.loaded.set()
        self.push_to_stops()

    def reading_began(self) -> int:
        return self._fills

    def account_read(self, began: int, cash: Decimal, positions: Mapping[str, Decimal]) -> None:
        """Take the venue's cash: deposits, withdrawals and manual trades reach the limits.

        Not if a fill was applied since the reading began, nor if one is stored and not yet applied
        here: the venue may have counted it, or not. The next reading is as good.
        """
        held = {each.symbol: each.quantity for each in self._portfolio.positions.values()}
        stored = {symbol: quantity for symbol, quantity in positions.items() if quantity}
        if self.loaded.is_set() and began == self._fills and held == stored:
            self._portfolio.set_cash(cash)

    async def release_owner(self, symbol: str) -> None:
        """Free a symbol that nobody holds and no order may buy: another strategy may trade it."""
        portfolio = self._portfolio
        while self._ledger is not None and symbol in portfolio.owners:
            before, (database, key) = self._submitted, self._ledger
            pending = await database.fetchval(_PENDING, *key, symbol)
            if pending or symbol in portfolio.positions:
                return
            if before == self._submitted:  # else an entry was submitted meanwhile
                portfolio.set_owner(symbol, "")

    def set_owner(self, symbol: str, strategy_key: str) -> None:
        self._submitted += 1
        self._portfolio.set_owner(symbol, strategy_key)

    def apply_fill(self, change: FillApplied) -> None:
        self._fills += 1
        self._portfolio.apply_fill(change)
        self.push_to_stops()

    def push_to_stops(self) -> None:
        self._micro_risk.set_positions(
            [
                PositionShadow(
                    symbol=each.symbol,
                    quantity=float(each.quantity),
                    average=float(each.average_price),
                    lot=LOTS[market_for_symbol(each.symbol)],
                    kind=self._kinds.get(self._portfolio.owners.get(each.symbol, ""), "PORTFOLIO"),
                )
                for each in self._portfolio.positions.values()
            ],
            float(self._portfolio.equity),
        )
