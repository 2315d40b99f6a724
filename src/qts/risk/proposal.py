"""What is asked of the gate, what the gate looks at, and its two answers."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Final, final
from uuid import UUID

import msgspec

from qts.domain import IntentType, OrderType, Side

_FROM_THE_GATE = object()


class OrderProposal(msgspec.Struct, frozen=True, kw_only=True):
    """An order that a strategy, a stop or a person wants."""

    strategy_key: str
    symbol: str
    side: Side
    type: OrderType
    quantity: Decimal
    price: Decimal | None = None
    intent_type: IntentType = IntentType.ENTRY
    signal_id: UUID  # of one signal at most one intent of a type is made
    decided_at: datetime
    expires_at: datetime  # a signal that got old does not fire
    reason: str = ""


class QuoteSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The market of a symbol, as known here."""

    last: Decimal
    bid: Decimal
    ask: Decimal
    age_ms: float
    base: Decimal | None = None  # yesterday's close, where the day's price limits hang on it


class Exposure(msgspec.Struct, frozen=True, kw_only=True):
    """What we have, and what is under way and may become ours."""

    position: Decimal  # of the symbol, signed
    average_price: Decimal
    pending_buy: Decimal  # of the symbol: sent and not yet filled, UNKNOWN included
    pending_sell: Decimal
    symbol_value: Decimal  # position and pending buys of the symbol, in money
    total_value: Decimal  # of all symbols
    open_symbols: int
    cash: Decimal
    equity: Decimal
    daily_pnl: Decimal
    orders_today: int
    orders_last_minute: int
    unknown_attempts: int  # in the whole account
    symbol_unknown: int


class Switches(msgspec.Struct, frozen=True, kw_only=True):
    """What may stop trading; the default of everything that is not known is off."""

    account_enabled: bool = False
    strategy_enabled: bool = False
    market_active: bool = False
    frozen: bool = True
    reconciled: bool = False
    session_open: bool = False
    safety: str = "LOCKDOWN"


class RiskSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    market: QuoteSnapshot | None
    exposure: Exposure
    switches: Switches
    now: datetime


class Reason(msgspec.Struct, frozen=True):
    code: str
    text: str


class Refusal(msgspec.Struct, frozen=True):
    reasons: tuple[Reason, ...]

    def __bool__(self) -> bool:
        return False


@final
class ApprovedOrder:
    """The gate's word, and the only thing the desk takes an order from; nobody else makes one."""

    __slots__ = ("at", "proposal")

    def __init__(self, proposal: OrderProposal, at: datetime, seal: object = None) -> None:
        if seal is not _FROM_THE_GATE:
            raise TypeError("only the gate approves; ask Gate.check")
        self.proposal: Final = proposal
        self.at: Final = at

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(self, name):
            raise AttributeError("what was approved does not change")
        super().__setattr__(name, value)


def approve(proposal: OrderProposal, at: datetime) -> ApprovedOrder:
    """For the gate alone."""
    return ApprovedOrder(proposal, at, _FROM_THE_GATE)
