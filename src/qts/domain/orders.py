"""The words of the trade: sides, orders, fills, accounts, and the states of an attempt.

    PREPARED ──▶ SENT ──▶ ACKED        the venue has it, and named it
        │          ├────▶ REJECTED     the venue declined it
        │          ├────▶ THROTTLED    too many requests: another attempt takes over
        │          └────▶ UNKNOWN ──▶  ACKED, REJECTED or ABSENT: by looking, never by sending
        └────▶ SUSPENDED               stopped before it left: switch, expiry, lockdown

Prices and quantities are Decimal: what a venue writes is kept as it is written.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from enum import StrEnum

import msgspec

from qts.domain.errors import RefusedError


class Side(StrEnum):
    BUY = "BUY"
    SELL = "SELL"

    @property
    def opposite(self) -> Side:
        return Side.SELL if self is Side.BUY else Side.BUY

    @property
    def sign(self) -> int:
        return 1 if self is Side.BUY else -1


class OrderType(StrEnum):
    LIMIT = "LIMIT"
    MARKET = "MARKET"


class IntentType(StrEnum):
    """Why an order is wanted. Exits reduce what is held and pass where entries do not."""

    ENTRY = "ENTRY"
    EXIT_SIGNAL = "EXIT_SIGNAL"
    EXIT_STOPLOSS = "EXIT_STOPLOSS"
    EXIT_TP = "EXIT_TP"
    EXIT_TRAIL = "EXIT_TRAIL"
    EXIT_TIME = "EXIT_TIME"
    EXIT_MAE = "EXIT_MAE"
    EXIT_VOLATILITY = "EXIT_VOLATILITY"
    EXIT_MANUAL = "EXIT_MANUAL"

    @property
    def is_exit(self) -> bool:
        return self is not IntentType.ENTRY

    @property
    def is_protective(self) -> bool:
        """Asked for by a stop or a person, and not by a strategy."""
        return self.is_exit and self not in (IntentType.EXIT_SIGNAL, IntentType.EXIT_TP)


class AttemptState(StrEnum):
    PREPARED = "PREPARED"
    SENT = "SENT"
    ACKED = "ACKED"
    REJECTED = "REJECTED"
    THROTTLED = "THROTTLED"
    UNKNOWN = "UNKNOWN"
    ABSENT = "ABSENT"
    SUSPENDED = "SUSPENDED"


class OrderState(StrEnum):
    """Of an order at its venue. What is not OPEN does not trade any more."""

    OPEN = "OPEN"
    FILLED = "FILLED"
    CANCELLED = "CANCELLED"


class OrderRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a venue is asked for. `identifier` is ours, fresh for every attempt."""

    client_order_id: str = msgspec.field(name="identifier")
    symbol: str
    side: Side
    type: OrderType
    quantity: Decimal
    price: Decimal | None = None  # of a LIMIT order, and of no other

    def __post_init__(self) -> None:
        if not self.quantity.is_finite() or self.quantity <= 0:
            raise RefusedError(
                f"quantity of {self.symbol} is {self.quantity}; expected more than 0"
            )
        if (self.type is OrderType.LIMIT) != (self.price is not None):
            raise RefusedError(f"a {self.type} order of {self.symbol} with price {self.price}")
        if self.price is not None and (not self.price.is_finite() or self.price <= 0):
            raise RefusedError(f"price of {self.symbol} is {self.price}; expected more than 0")


class BrokerOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An order as its venue tells of it; orders placed by hand have no identifier of ours."""

    broker_order_id: str = msgspec.field(name="order_id")
    symbol: str
    side: Side
    type: OrderType
    quantity: Decimal
    filled: Decimal
    state: OrderState
    placed_at: datetime
    price: Decimal | None = None
    client_order_id: str | None = msgspec.field(name="identifier", default=None)


class Fill(msgspec.Struct, frozen=True, kw_only=True):
    """One trade of an order. `trade_id` is the venue's: the same one is the same fill."""

    trade_id: str
    broker_order_id: str = msgspec.field(name="order_id")
    symbol: str
    side: Side
    quantity: Decimal
    price: Decimal
    fee: Decimal  # fees and taxes, in the account's money
    at: datetime


class Position(msgspec.Struct, frozen=True):
    """Signed quantity and average price of a symbol, computed from fills."""

    symbol: str
    quantity: Decimal
    average_price: Decimal


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    symbol: str
    quantity: Decimal
    average_price: Decimal


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What the venue says we have."""

    cash: Decimal
    holdings: tuple[Holding, ...]
