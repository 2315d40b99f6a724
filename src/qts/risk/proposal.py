"""Input and results of the pre-trade gate: proposal, risk snapshot, approval, refusal."""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from datetime import UTC, datetime
from decimal import ROUND_DOWN, Decimal
from typing import final
from uuid import UUID

import msgspec

from qts.domain import (
    ExitLevels,
    Instrument,
    IntentType,
    OrderType,
    Side,
    TimeInForce,
    unknown_instrument,
)

_EPOCH = datetime.fromtimestamp(0, UTC)
_FROM_THE_GATE = object()
_MIN_QUANTITY = Decimal("0.00000001")


class OrderProposal(msgspec.Struct, frozen=True, kw_only=True):
    """A sized order, not yet checked, of a strategy, a stop or the operator."""

    strategy_key: str
    symbol: str
    side: Side
    type: OrderType
    quantity: Decimal
    price: Decimal | None = None
    intent_type: IntentType = IntentType.ENTRY
    signal_id: UUID  # at most one intent per signal and type
    decided_at: datetime
    expires_at: datetime  # an expired proposal is refused
    reason: str = ""
    time_in_force: TimeInForce | float = TimeInForce.DAY  # a number: seconds
    exits: ExitLevels | None = None  # of the position that it enters
    trigger: Decimal | None = None  # of a stop order: it is proposed again when a trade is there


class QuoteSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Prices of a symbol and their age."""

    last: Decimal
    bid: Decimal
    ask: Decimal
    age_ms: float
    base: Decimal | None = None  # yesterday's close, for the day's price limits


class Exposure(msgspec.Struct, frozen=True, kw_only=True):
    """Positions, and pending orders as if they were filled."""

    position: Decimal  # of the symbol, signed
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
    symbol_unknown: int
    # Of the strategy that proposes: the symbols that it holds or buys, in money and as a count.
    strategy_value: Decimal = Decimal(0)
    strategy_symbols: int = 0
    strategy_symbol_value: Decimal = Decimal(0)  # of the proposed symbol
    strategy_orders_today: int = 0


class AccountFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the ledger that an order is approved on; its own statement compares them again."""

    position: Decimal  # of the symbol, signed
    pending_buy: Decimal  # of the symbol
    pending_sell: Decimal
    held: Decimal  # sum of all positions: it shows a change, it is no amount
    pending: Decimal  # sum of what all pending orders may still fill
    pending_orders: int
    age_ms: float  # since they were read
    # The defaults are for journals from before these were kept.
    latest_since: datetime = _EPOCH  # shortly before they were read: no older order can appear
    latest_orders: int = 0  # sent since


class Switches(msgspec.Struct, frozen=True, kw_only=True):
    """What may stop trading; unknown means stopped."""

    account_enabled: bool = False
    strategy_enabled: bool = False
    market_active: bool = False
    frozen: bool = True
    watched: bool = True  # no position, or one that the stops watch
    reconciled: bool = False
    session_open: bool = False
    clock_synced: bool = True  # journals from before it was measured have no such field
    safety: str = "LOCKDOWN"


class RiskSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    instrument: Instrument = unknown_instrument("")  # what is not known may not be entered
    market: QuoteSnapshot | None
    exposure: Exposure
    switches: Switches
    now: datetime
    facts: AccountFacts | None = None  # None: nothing to compare, as in a backtest


class Reason(msgspec.Struct, frozen=True):
    code: str
    text: str


class Refusal(msgspec.Struct, frozen=True):
    reasons: tuple[Reason, ...]

    def __bool__(self) -> bool:
        return False


@final
@dataclass(frozen=True, slots=True, eq=False)
class ApprovedOrder:
    """A proposal that passed the gate; only the gate creates one, and only it can be submitted."""

    proposal: OrderProposal
    at: datetime
    seal: InitVar[object] = None
    facts: AccountFacts | None = None  # that it was approved on

    def __post_init__(self, seal: object) -> None:
        if seal is not _FROM_THE_GATE:
            raise TypeError("only the gate approves; use PreTradeGate.check")


def approve(
    proposal: OrderProposal, at: datetime, facts: AccountFacts | None = None
) -> ApprovedOrder:
    """Approve a proposal; for the gate alone."""
    return ApprovedOrder(proposal, at, _FROM_THE_GATE, facts)


def exit_quantity(requested: float, held: Decimal) -> Decimal:
    """Return the exact quantity of a stop's double, never more than the unsigned position."""
    if float(held) == requested:
        return held
    quantity = Decimal(str(requested)).quantize(_MIN_QUANTITY, ROUND_DOWN).normalize() + 0
    return min(quantity, held) if held else quantity
