"""Risk snapshot of a backtest: everything is switched on, prices are those of the tape."""

from __future__ import annotations

from qts.backtest.portfolio import BacktestClock, BacktestPortfolio
from qts.domain import exact_decimal
from qts.orders import AccountState
from qts.pipeline import compute_exposure
from qts.risk import OrderProposal, QuoteSnapshot, RiskSnapshot, SafetyState, Switches

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


def risk_snapshot(
    proposal: OrderProposal,
    state: AccountState,
    portfolio: BacktestPortfolio,
    clock: BacktestClock,
    safety: SafetyState,
) -> RiskSnapshot:
    """Return what the gate checks an order with."""
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
