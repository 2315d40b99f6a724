"""Positions of a run: loaded from the ledger, followed there, pushed to the stops.

    fills of this run ──▶ portfolio ──▶ stops ──▶ state, written behind (table position_stop)
    an adoption (NOTIFY, or the poll) ─▶ reload       └──▶ restored at the start

The state of the stops belongs to one position. A position is another one when it was opened later,
or adopted again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from decimal import Decimal

from qts.brokers import Broker
from qts.database import Database
from qts.domain import AccountKey, Position
from qts.orders import FillApplied, PositionRow, half_sold_symbols, list_positions
from qts.pipeline.portfolio import Portfolio
from qts.pipeline.stop_records import StopRecords
from qts.risk import MicroRiskLoop, load_stop_records, save_stop_records
from qts.strategies import StrategyKind

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
        self._records = StopRecords(portfolio, micro_risk, kinds)
        self._fills = self._submitted = 0
        self._ledger: tuple[Database, AccountKey] | None = None
        self.loaded = asyncio.Event()

    async def load(self, database: Database, broker: Broker) -> None:
        account = await broker.account()
        owners = await database.fetch(_OWNERS, *broker.key)
        stored = await load_stop_records(database, broker.key)
        half_sold = await half_sold_symbols(database, broker.key)
        rows = await list_positions(database, broker.key)
        # All at once: no tick may meet a position without its stop state.
        self._portfolio.load(account.cash, _positions(rows))
        for symbol, key in owners:
            self._portfolio.set_owner(symbol, key)
        self._ledger = database, broker.key
        self._records.take(rows, stored)
        self._records.mark_half_sold(half_sold)
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

    async def reload(self, database: Database, broker: Broker) -> None:
        """Take what another process changed in the ledger: an adoption, a manual correction."""
        fills = self._fills
        stored = await load_stop_records(database, broker.key)
        rows = await list_positions(database, broker.key)
        if fills != self._fills:  # a fill of this run is newer than what was read
            return
        self._records.take(rows, stored)
        positions = {each.symbol: each for each in _positions(rows)}
        if positions != self._portfolio.positions:
            self._portfolio.load(self._portfolio.cash, positions.values())
        self.push_to_stops()

    def apply_fill(self, change: FillApplied) -> None:
        self._fills += 1
        self._portfolio.apply_fill(change)
        symbol = change.fill.symbol
        self._records.follow(symbol, change.position, change.average_price, change.opened_at)
        self.push_to_stops()

    async def save_stops(self, database: Database, broker: Broker) -> None:
        """Write the stop states that changed since the last time, in one statement."""
        if records := self._records.unsaved():
            await save_stop_records(database, broker.key, records)
            self._records.saved(records)

    def notes(self) -> dict[str, str]:
        """Return what the operator should know of positions that no stop watches."""
        return self._records.notes()

    def unwatched(self) -> frozenset[str]:
        """Return the symbols that were adopted without stops."""
        return self._records.unwatched()

    def push_to_stops(self) -> None:
        self._micro_risk.set_positions(self._records.shadows(), float(self._portfolio.equity))


def _positions(rows: list[PositionRow]) -> list[Position]:
    return [Position(row.symbol, row.quantity, row.average_price) for row in rows if row.quantity]
