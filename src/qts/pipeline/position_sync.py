"""What is held: taken from the books at the start, and from then on what the stops watch."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from qts.app import RunContext
from qts.brokers import Broker
from qts.domain import Market, Position, market_for_symbol
from qts.orders import list_positions
from qts.pipeline.portfolio import Portfolio
from qts.pipeline.runner import StrategyRunner
from qts.risk import MicroRiskLoop, PositionShadow
from qts.strategies import StrategyKind

LOTS = {Market.KRX: 1.0, Market.UPBIT: 1e-8}  # the least that can be sold
_OWNERS = (
    "SELECT DISTINCT ON (i.symbol) i.symbol, i.strategy_key FROM order_intent i"
    " JOIN position p ON p.broker = i.broker AND p.symbol = i.symbol AND p.quantity <> 0"
    " WHERE i.broker = $1 AND i.intent_type = 'ENTRY' ORDER BY i.symbol, i.created_at DESC"
)


class PositionSync:
    """`load` once the books are known; `tell` whenever something was traded, and now and then."""

    def __init__(
        self, world: Portfolio, micro: MicroRiskLoop, runners: Mapping[str, StrategyRunner]
    ) -> None:
        self._world = world
        self._micro = micro
        self._runners = runners
        self.known = asyncio.Event()

    async def load(self, ground: RunContext, broker: Broker) -> None:
        account = await broker.account()
        held = await list_positions(ground.database)
        self._world.load(
            account.cash,
            [
                Position(row.symbol, row.quantity, row.average_price)
                for row in held
                if row.broker == broker.name
            ],
        )
        owners = await ground.database.fetch(_OWNERS, broker.name)
        for symbol, key in owners:
            self._world.set_owner(symbol, key)
        self.known.set()
        self.push_to_stops()

    def push_to_stops(self) -> None:
        """The stops, of what is held now."""
        self._micro.set_positions(
            [
                PositionShadow(
                    symbol=each.symbol,
                    quantity=float(each.quantity),
                    average=float(each.average_price),
                    lot=LOTS[market_for_symbol(each.symbol)],
                    kind=self._kind_of(each.symbol),
                )
                for each in self._world.positions.values()
            ],
            float(self._world.equity),
        )

    def _kind_of(self, symbol: str) -> StrategyKind:
        """Of the strategy that holds it; what nobody here holds is the portfolio's."""
        runner = self._runners.get(self._world.owners.get(symbol, ""))
        return runner.strategy.kind if runner else "PORTFOLIO"
