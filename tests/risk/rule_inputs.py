"""A proposal that passes, and the facts under which it does; tests change one thing at a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from qts.domain import OrderType, Side
from qts.risk import Exposure, OrderProposal, QuoteSnapshot, RiskSnapshot, Switches
from tests.instruments import LISTED

NOW = datetime(2026, 11, 16, 1, 0, tzinfo=UTC)
PROPOSAL = OrderProposal(
    strategy_key="scalp",
    symbol="005930",
    side=Side.BUY,
    type=OrderType.LIMIT,
    quantity=Decimal(3),
    price=Decimal(75_100),
    signal_id=UUID(int=1),
    decided_at=NOW,
    expires_at=NOW + timedelta(seconds=5),
)
FACTS = RiskSnapshot(
    instrument=LISTED["005930"],
    market=QuoteSnapshot(
        last=Decimal(75_100),
        bid=Decimal(75_000),
        ask=Decimal(75_100),
        age_ms=20,
        base=Decimal(74_000),
    ),
    exposure=Exposure(
        position=Decimal(0),
        pending_buy=Decimal(0),
        pending_sell=Decimal(0),
        symbol_value=Decimal(0),
        total_value=Decimal(0),
        open_symbols=0,
        cash=Decimal(10_000_000),
        equity=Decimal(10_000_000),
        daily_pnl=Decimal(0),
        orders_today=0,
        orders_last_minute=0,
        symbol_unknown=0,
    ),
    switches=Switches(
        account_enabled=True,
        strategy_enabled=True,
        market_active=True,
        frozen=False,
        reconciled=True,
        session_open=True,
        safety="NORMAL",
    ),
    now=NOW,
)


def proposal(**other: Any) -> OrderProposal:
    return replace(PROPOSAL, **other)


def facts(part: str = "", **other: Any) -> RiskSnapshot:
    """The facts, with other values in one of their parts or, unnamed, of their own."""
    if not part:
        return replace(FACTS, **other)
    return replace(FACTS, **{part: replace(getattr(FACTS, part), **other)})
