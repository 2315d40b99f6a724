"""Stops of a backtest, the live micro risk loop on its clock, and the risk snapshot of its gate."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from functools import lru_cache
from uuid import NAMESPACE_OID, uuid5

from qts import risk  # its loop needs the C++ core: loaded when a backtest is run
from qts.backtest.portfolio import BacktestClock, BacktestPortfolio
from qts.domain import STOPS, IntentType, OrderType, Position, Side, exact_decimal
from qts.events import Payload
from qts.events import payloads as p
from qts.orders import AccountState
from qts.pipeline import compute_exposure
from qts.risk import (
    OrderProposal,
    PositionStops,
    QuoteSnapshot,
    RiskSnapshot,
    SafetyState,
    StopsConfig,
    Switches,
    exit_quantity,
)
from qts.strategies import StrategyKind

RETRY_INTERVAL_S = 1.0  # after an exit was refused
EXIT_TTL_S = 10.0

Exit = tuple[str, Side, Decimal, IntentType, float]
_SWITCHES = {
    safety: Switches(
        account_enabled=True,
        strategy_enabled=True,
        market_active=True,
        frozen=False,
        reconciled=True,
        session_open=True,
        safety=safety,
    )
    for safety in SafetyState
}


@lru_cache(1024)  # of a position, for as long as it is held
def _adverse_level(average: Decimal, is_long: bool, fall: float) -> Decimal:
    return average * (1 - (1 if is_long else -1) * exact_decimal(fall))


class BacktestStops:
    """Micro risk loop of a backtest; `submit` returns why an exit was refused, if it was."""

    def __init__(
        self,
        config: StopsConfig,
        owner_of: Callable[[str], tuple[StrategyKind, PositionStops | None]],
        portfolio: BacktestPortfolio,
        clock: BacktestClock,
        submit: Callable[[OrderProposal], str],
        raise_code: Callable[[str, str], None],
    ) -> None:
        self._owner_of = owner_of
        self._portfolio = portfolio
        self._clock = clock
        self._submit = submit
        self._loop = risk.MicroRiskLoop(
            config, self._on_event, raise_code, clock, risk.ageless, is_past=True
        )
        self._exits: list[Exit] = []
        self._retry_at: dict[str, float] = {}  # of symbols whose exit was refused

    def on_tick(self, symbol: str, price: float, at_ns: int) -> None:
        """Look at a price; `at_ns` is the time that hold times are measured with."""
        self._loop.stops.on_tick(symbol, price, at_ns)
        if self._exits:
            self._send_exits()

    def levels(self, symbol: str) -> list[Decimal]:
        """Return the prices at which the stops of a position fire as they are now."""
        held, position = self._loop.stops.position(symbol), self._portfolio.position(symbol)
        if held is None or position is None:
            return []
        found = [
            _adverse_level(position.average_price, position.quantity > 0, fall)
            for fall in (held["mae_half"], held["mae_full"])
        ]
        if held["trailing"] is not None:
            found.append(Decimal(repr(held["trailing"])))
        if exits := self._portfolio.exits.get(symbol):
            found += [level for level in (exits.stop, exits.target) if level is not None]
        return found

    def check(self) -> None:
        """Run the checks that depend on time, and retry refused exits."""
        for symbol in [name for name, at in self._retry_at.items() if self._clock.at >= at]:
            del self._retry_at[symbol]
            self._loop.rearm(symbol, "not carried out")
        self._loop.set_equity(float(self._portfolio.equity))
        self._loop.check()
        self._send_exits()

    def sync_position(self, symbol: str) -> None:
        """Take the position in a symbol, its owner and its exits, after a change of them."""
        position = self._portfolio.position(symbol)
        if position is None:
            self._loop.remove_position(symbol)
        else:
            self._loop.set_position(self._shadow(position))

    def _shadow(self, position: Position) -> risk.PositionShadow:
        symbol = position.symbol
        kind, stops = self._owner_of(symbol)
        return risk.PositionShadow(
            symbol=symbol,
            quantity=float(position.quantity),
            average=float(position.average_price),
            lot=float(self._portfolio.instruments[symbol].lot),
            kind=kind,
            stops=stops,
            exits=self._portfolio.exits.get(symbol),
        )

    def start_day(self) -> None:
        self._loop.reset()

    def _on_event(self, _name: str, payload: Payload) -> None:
        if not isinstance(payload, risk.EmergencyOrder | p.TrailingStopHit):
            return
        position = self._portfolio.position(payload.symbol)
        held = position.quantity if position is not None else Decimal(0)
        if isinstance(payload, risk.EmergencyOrder):
            side, reason = Side(payload.side), IntentType(payload.reason)
        else:
            side, reason = (Side.BUY if held < 0 else Side.SELL), IntentType.EXIT_TRAIL
        quantity = exit_quantity(payload.qty, abs(held))
        self._exits.append((payload.symbol, side, quantity, reason, payload.price))

    def _send_exits(self) -> None:
        exits, self._exits = sorted(self._exits), []
        for symbol, side, quantity, reason, price in exits:
            now = self._clock.now()
            name = f"{symbol}\x1f{self._clock.at!r}\x1f{reason}\x1f{quantity}\x1f{price!r}"
            refusal = self._submit(
                OrderProposal(
                    strategy_key=STOPS,
                    symbol=symbol,
                    side=side,
                    type=OrderType.MARKET,
                    quantity=quantity,
                    intent_type=reason,
                    signal_id=uuid5(NAMESPACE_OID, name),
                    decided_at=now,
                    expires_at=now + timedelta(seconds=EXIT_TTL_S),
                    reason=f"{reason} at {price:g}",
                )
            )
            if refusal:
                self._retry_at[symbol] = self._clock.at + RETRY_INTERVAL_S


def risk_snapshot(
    proposal: OrderProposal,
    state: AccountState,
    portfolio: BacktestPortfolio,
    clock: BacktestClock,
    safety: SafetyState,
) -> RiskSnapshot:
    """Return what the gate checks an order with.

    Everything is switched on, and prices are those of the tape.
    """
    symbol = proposal.symbol
    tick = portfolio.last_tick(symbol)
    quote = None
    if tick is not None:
        quote = QuoteSnapshot(
            last=exact_decimal(tick.price),
            bid=exact_decimal(tick.bid),
            ask=exact_decimal(tick.ask),
            age_ms=(clock.at - tick.at) * 1000,
        )
    return RiskSnapshot(
        instrument=portfolio.instruments[symbol],
        market=quote,
        exposure=compute_exposure(symbol, state, portfolio, proposal.strategy_key),
        switches=_SWITCHES[safety],
        now=clock.now(),
    )
