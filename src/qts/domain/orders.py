"""Sides, orders, fills, positions, accounts, and the states of an order attempt.

    PREPARED ──▶ SENT ──▶ ACKED        the venue accepted it and returned a broker order id
        │          ├────▶ REJECTED     the venue rejected it
        │          ├────▶ THROTTLED    rate-limited; a new attempt replaces it
        │          └────▶ UNKNOWN ──▶  ACKED, REJECTED or ABSENT: by lookup, never by resending
        └────▶ SUSPENDED               stopped before sending: kill switch, expiry, lockdown

Prices and quantities are Decimal, so a venue's figures keep their exact digits.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from typing import NamedTuple

import msgspec

from qts.domain.clock import TimeLimit
from qts.domain.errors import RefusedError


class AccountKey(NamedTuple):
    """One account at one broker, as rows of the database name it."""

    broker: str
    account: str  # a digest: the number itself is not stored

    @classmethod
    def of(cls, broker: str, *identity: str) -> AccountKey:
        """Return the key of the account that these texts identify."""
        return cls(broker, hashlib.sha256("\x1f".join(identity).encode()).hexdigest()[:16])

    @property
    def short(self) -> str:
        """The key for the eye: the broker and the first digits of the digest."""
        return f"{self.broker}:{self.account[:8]}"

    def __str__(self) -> str:
        return f"{self.broker}:{self.account}"


class Side(StrEnum):
    """Direction of an order or a fill."""

    BUY = "BUY"
    SELL = "SELL"

    @property
    def opposite(self) -> Side:
        """The other side."""
        return Side.SELL if self is Side.BUY else Side.BUY

    sign: int
    """1 for BUY, -1 for SELL."""

    def __init__(self, value: str) -> None:
        self.sign = 1 if value == "BUY" else -1


class OrderType(StrEnum):
    """Whether an order has a limit price."""

    LIMIT = "LIMIT"
    MARKET = "MARKET"


class TimeInForce(StrEnum):
    """How long an order may stay at its venue; a number of seconds is the fourth choice.

    DAY ends at midnight in Seoul, for every market. IOC fills at once what it can, FOK all or
    nothing.
    """

    IOC = "IOC"
    FOK = "FOK"
    DAY = "DAY"
    GTC = "GTC"


FILL_AT_ONCE = (TimeInForce.IOC, TimeInForce.FOK)
IOC_TTL_S = 5.0  # after which an IOC or FOK order that its venue kept is cancelled
_SEOUL = timezone(timedelta(hours=9))


def good_until(time_in_force: TimeInForce | float, at: datetime) -> datetime | None:
    """Return when an order of that moment is to be cancelled; None: never."""
    if time_in_force is TimeInForce.GTC:
        return None
    if time_in_force is TimeInForce.DAY:
        midnight = at.astimezone(_SEOUL).replace(hour=0, minute=0, second=0, microsecond=0)
        return (midnight + timedelta(days=1)).astimezone(UTC)
    seconds = IOC_TTL_S if isinstance(time_in_force, TimeInForce) else time_in_force
    return at + timedelta(seconds=seconds)


class IntentType(StrEnum):
    """Reason for an order. Exits reduce a position and pass checks that entries do not."""

    ENTRY = "ENTRY"
    EXIT_SIGNAL = "EXIT_SIGNAL"
    EXIT_STOPLOSS = "EXIT_STOPLOSS"
    EXIT_TP = "EXIT_TP"
    EXIT_TRAIL = "EXIT_TRAIL"
    EXIT_TIME = "EXIT_TIME"
    EXIT_MAE = "EXIT_MAE"
    EXIT_VOLATILITY = "EXIT_VOLATILITY"
    EXIT_MANUAL = "EXIT_MANUAL"

    is_exit: bool
    """Whether the order reduces a position."""

    def __init__(self, value: str) -> None:
        self.is_exit = value != "ENTRY"

    @property
    def is_protective(self) -> bool:
        """Return whether a stop or the operator, not a strategy, requested the exit."""
        return self.is_exit and self not in (IntentType.EXIT_SIGNAL, IntentType.EXIT_TP)


# Strategy keys of the operator's own orders, and of the stops'; no strategy may have them.
MANUAL = "manual"
STOPS = "risk"


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
    """State of an order at its venue; only an OPEN order can still be filled."""

    OPEN = "OPEN"
    FILLED = "FILLED"
    CANCELLED = "CANCELLED"


class ExitLevels(msgspec.Struct, frozen=True, kw_only=True):
    """Prices at which the stops close the position of an entry; `trail` is a share of the price."""

    stop: Decimal | None = None
    target: Decimal | None = None
    trail: Decimal | None = None  # distance from the best price since the entry


class OrderRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Order to place at a venue. `client_order_id` is unique per attempt."""

    client_order_id: str = msgspec.field(name="identifier")
    symbol: str
    side: Side
    type: OrderType
    quantity: Decimal
    price: Decimal | None = None  # set if and only if the order is LIMIT
    is_exit: bool = False  # sent ahead of entries
    time_in_force: TimeInForce | float = TimeInForce.DAY  # a number: seconds
    good_until: datetime | None = None  # then what is left is cancelled
    expires_at: datetime | None = None  # then it is no longer sent
    send_by: tuple[TimeLimit, ...] = ()  # not sent when all are over, whatever the wall clock says
    exits: ExitLevels | None = None  # of the position that it enters; the venue has no part in them

    def __post_init__(self) -> None:
        if not self.quantity.is_finite() or self.quantity <= 0:
            raise RefusedError(
                f"quantity of {self.symbol} is {self.quantity}; expected more than 0"
            )
        if (self.type is OrderType.LIMIT) != (self.price is not None):
            raise RefusedError(
                f"{self.type} order for {self.symbol} has price {self.price}; only LIMIT takes one"
            )
        if self.price is not None and (not self.price.is_finite() or self.price <= 0):
            raise RefusedError(f"price of {self.symbol} is {self.price}; expected more than 0")


class BrokerOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Order as the venue reports it; one placed outside QTS has no client order id."""

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

    @classmethod
    def of(
        cls,
        request: OrderRequest,
        broker_order_id: str,
        placed_at: datetime,
        filled: Decimal = Decimal(0),
        state: OrderState = OrderState.OPEN,
    ) -> BrokerOrder:
        """Return the order that the request became."""
        return cls(
            broker_order_id=broker_order_id,
            symbol=request.symbol,
            side=request.side,
            type=request.type,
            quantity=request.quantity,
            filled=filled,
            state=state,
            placed_at=placed_at,
            price=request.price,
            client_order_id=request.client_order_id,
        )


class Fill(msgspec.Struct, frozen=True, kw_only=True):
    """One execution of an order, identified by the venue's `trade_id`."""

    trade_id: str
    broker_order_id: str = msgspec.field(name="order_id")
    symbol: str
    side: Side
    quantity: Decimal
    price: Decimal
    fee: Decimal  # fees and taxes, in the account's currency
    at: datetime


class OrderSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """An order of a strategy after a change of its state; `price` is None for a market order.

    `state` is that of the attempt (SENT, ACKED, REJECTED, THROTTLED, UNKNOWN, ABSENT, SUSPENDED)
    until the order has ended: FILLED, or CANCELLED with what `remaining` says. A stop order is
    WAITING until a trade reaches its `trigger`.
    """

    intent_id: str
    symbol: str
    side: Side
    state: str
    filled: Decimal
    remaining: Decimal
    reason: str = ""
    price: Decimal | None = None
    strategy_key: str = ""
    trigger: Decimal | None = None  # of a stop order, while it waits

    @property
    def quantity(self) -> Decimal:
        """What was ordered: filled and remaining together."""
        return self.filled + self.remaining


class OrderTerms(msgspec.Struct, frozen=True):
    """What an order that is replaced passes on to the new one."""

    strategy_key: str
    intent_type: IntentType
    time_in_force: TimeInForce | float
    reason: str = ""
    exits: ExitLevels | None = None


class Position(msgspec.Struct, frozen=True):
    """Signed quantity and average price of a symbol, computed from fills."""

    symbol: str
    quantity: Decimal
    average_price: Decimal


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """Quantity of a symbol according to the venue's account statement."""

    symbol: str
    quantity: Decimal
    average_price: Decimal


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """Cash and holdings at a venue."""

    cash: Decimal
    holdings: tuple[Holding, ...]
