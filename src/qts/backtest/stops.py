"""The stops of a backtest: the live micro risk loop on the past's clock."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from uuid import NAMESPACE_OID, uuid5

from qts import risk  # its loop needs the C++ core: loaded when a backtest is run
from qts.backtest.portfolio import BacktestClock, BacktestPortfolio
from qts.domain import IntentType, Market, OrderType, Side, market_for_symbol
from qts.events import Payload
from qts.events import payloads as p
from qts.risk import OrderProposal, StopsConfig
from qts.strategies import StrategyKind

KEY = "risk"
AGAIN_S = 1.0  # an exit that was refused is asked for again after this long
LIFE_S = 10.0
_LOTS = {Market.KRX: 1.0, Market.UPBIT: 1e-8}

Exit = tuple[str, Side, Decimal, IntentType, float]


class BacktestStops:
    """`trade` proposes an exit and says why not; `trip` raises a code."""

    def __init__(
        self,
        config: StopsConfig,
        kind: StrategyKind,
        world: BacktestPortfolio,
        clock: BacktestClock,
        trade: Callable[[OrderProposal], str],
        trip: Callable[[str, str], None],
    ) -> None:
        self._kind = kind
        self._world = world
        self._clock = clock
        self._trade = trade
        self._micro = risk.MicroRiskLoop(config, self._published, trip, clock, is_past=True)
        self._exits: list[Exit] = []
        self._again: dict[str, float] = {}  # symbols whose exit was refused, and until when

    def tick(self, symbol: str, price: float) -> None:
        self._micro.stops.on_tick(symbol, price, self._clock.monotonic_ns())
        if self._exits:
            self._leave()

    def look(self) -> None:
        """What no tick tells."""
        for symbol in [name for name, at in self._again.items() if self._clock.at >= at]:
            del self._again[symbol]
            self._micro.rearm(symbol, "not carried out")
        self.hold()
        self._micro.check()
        self._leave()

    def hold(self) -> None:
        self._micro.set_positions(
            [
                risk.PositionShadow(
                    symbol=each.symbol,
                    quantity=float(each.quantity),
                    average=float(each.average_price),
                    lot=_LOTS[market_for_symbol(each.symbol)],
                    kind=self._kind,
                )
                for each in self._world.positions.values()
            ],
            float(self._world.equity),
        )

    def new_day(self) -> None:
        self._micro.reset()

    def _published(self, _name: str, payload: Payload) -> None:
        if isinstance(payload, risk.EmergencyOrder):
            side, reason = Side(payload.side), IntentType(payload.reason)
        elif isinstance(payload, p.TrailingStopHit):
            held = self._world.held(payload.symbol)
            side = Side.BUY if held is not None and held.quantity < 0 else Side.SELL
            reason = IntentType.EXIT_TRAIL
        else:
            return
        quantity = Decimal(str(payload.qty)).normalize() + 0
        self._exits.append((payload.symbol, side, quantity, reason, payload.price))

    def _leave(self) -> None:
        exits, self._exits = sorted(self._exits), []
        for symbol, side, quantity, reason, price in exits:
            now = self._clock.now()
            name = f"{symbol}\x1f{self._clock.at!r}\x1f{reason}\x1f{quantity}"
            why = self._trade(
                OrderProposal(
                    strategy_key=KEY,
                    symbol=symbol,
                    side=side,
                    type=OrderType.MARKET,
                    quantity=quantity,
                    intent_type=reason,
                    signal_id=uuid5(NAMESPACE_OID, name),
                    decided_at=now,
                    expires_at=now + timedelta(seconds=LIFE_S),
                    reason=f"{reason} at {price:g}",
                )
            )
            if why:
                self._again[symbol] = self._clock.at + AGAIN_S
