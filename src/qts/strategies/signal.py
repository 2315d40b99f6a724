"""What a strategy returns: a `Signal` asks for an order, `Cancel` and `Replace` change one.

Signal(symbol="005930", side="BUY", at=tick.at)              as large as allowed
Signal(…, quantity=7)                                        a number of shares
Signal(…, value=300_000)                                     won
Signal(…, share=0.05)                                        a part of the equity
Signal(…, risk=0.01, stop=68_000)                            the part that is lost at the stop
Signal(…, type="LIMIT", price=70_000, time_in_force=60)      rests for a minute
Signal(…, trigger=71_000)                                    a stop order: waits for that price
Signal(…, stop=68_000, target=75_000)                        a bracket
Signal(…, trail=0.03)                                        a trailing stop
Cancel(order)                                                order: one of view.orders
Replace(order, price=69_900)                                 cancel, then a new order
"""

from __future__ import annotations

import math
import reprlib
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from numbers import Real
from typing import NoReturn, TypeVar

import msgspec
from msgspec.structs import force_setattr

from qts.domain import (
    ExitLevels,
    IntentType,
    OrderSnapshot,
    OrderTerms,
    OrderType,
    Side,
    TimeInForce,
)

Choice = TypeVar("Choice", bound=StrEnum)

MAX_NUMBER = Decimal(10) ** 18  # prices and quantities beyond it are mistakes
MIN_PRICE = 1 / MAX_NUMBER
MAX_LIFETIME_S = 31_536_000  # a year
MAX_AT_S = 1e11  # the year 5138: epoch milliseconds are refused


class Signal(msgspec.Struct, frozen=True, kw_only=True, tag="signal", tag_field="instruction"):
    """Request of a strategy to trade a symbol.

    Its size is a `quantity`, a `value` in won, a `share` of the equity (0.05 is 5 %), or a `risk`:
    the share of the equity that is lost at `stop`. Without any, an entry is as large as one order
    may be and an exit closes the position.
    The position of an entry is closed at its `stop` or `target`, whichever price comes first, or
    when the price falls by the share `trail` below its best.
    `time_in_force` is how long the order may stay at the venue: IOC (fills what it can at once),
    FOK (all at once, or nothing), DAY (until midnight in Seoul), GTC (refused for stocks, whose
    orders end with the day), or seconds as a number or a timedelta. What is not filled by then is
    cancelled.
    With a `trigger` it is a stop order: it waits in QTS, and becomes the order that it describes
    when a trade is at that price or beyond it (a purchase: or above, a sale: or below).
    `at` is the time of the tick or bar behind the decision. Signals with the same strategy, symbol,
    side and `at` are the same signal and lead to one order.

    Numbers may be given as int, float, Decimal or text, choices as text in any case, and `at` as
    epoch seconds or as a datetime with a time zone. Anything else is refused, naming the field.
    """

    symbol: str
    side: Side
    at: float
    quantity: Decimal | None = None
    type: OrderType = OrderType.MARKET
    price: Decimal | None = None
    confidence: float = 1.0
    intent_type: IntentType = IntentType.ENTRY
    reason: str = ""
    time_in_force: TimeInForce | float = TimeInForce.DAY
    value: Decimal | None = None
    share: Decimal | None = None
    risk: Decimal | None = None
    stop: Decimal | None = None
    target: Decimal | None = None
    trail: Decimal | None = None
    trigger: Decimal | None = None

    def __post_init__(self) -> None:
        """Convert what has another type than its field; refuse what has no clear meaning."""
        if type(self.side) is not Side:
            force_setattr(self, "side", _choice("side", Side, self.side))
        if type(self.type) is not OrderType:
            force_setattr(self, "type", _choice("type", OrderType, self.type))
        if type(self.intent_type) is not IntentType:
            force_setattr(self, "intent_type", _choice("intent_type", IntentType, self.intent_type))
        if type(self.at) is not float or not 0 <= self.at < MAX_AT_S:
            force_setattr(self, "at", _epoch_seconds(self.at))
        if self.quantity is not None:
            force_setattr(self, "quantity", _quantity(self.quantity))
        if self.value is not None or self.share is not None or self.risk is not None:
            _convert_size(self)
        if self.stop is not None or self.target is not None or self.trail is not None:
            _convert_exits(self)
        if self.price is not None:
            force_setattr(self, "price", _price(self.price))
        if self.trigger is not None:
            force_setattr(self, "trigger", _price(self.trigger, "trigger"))
        if type(self.confidence) is not float or not math.isfinite(self.confidence):
            force_setattr(self, "confidence", _confidence(self.confidence))
        if type(self.symbol) is not str or not self.symbol.isalnum():
            force_setattr(self, "symbol", _symbol(self.symbol))
        if self.time_in_force is not TimeInForce.DAY:
            force_setattr(self, "time_in_force", _lifetime(self.time_in_force))
        if type(self.reason) is not str or self.reason:
            force_setattr(self, "reason", _reason(self.reason))

    @property
    def exits(self) -> ExitLevels | None:
        """The exits of the position that it enters."""
        if self.stop is None and self.target is None and self.trail is None:
            return None
        return ExitLevels(stop=self.stop, target=self.target, trail=self.trail)


class OrderChange(msgspec.Struct, frozen=True, tag_field="instruction"):
    """Change of an open order of the strategy: one of `view.orders`."""

    order: OrderSnapshot

    @property
    def symbol(self) -> str:
        """Symbol of the order."""
        return self.order.symbol

    def __post_init__(self) -> None:
        given: object = self.order
        if not isinstance(given, OrderSnapshot):
            name = f"{type(self).__name__}.order"
            _refuse(name, "an order of view.orders", given, mistyped=True)


class Cancel(OrderChange, frozen=True, tag="cancel"):
    """Request of a strategy to cancel one of its orders; what has ended meanwhile is no error."""


class Replace(OrderChange, frozen=True, kw_only=True, tag="replace"):
    """Request of a strategy to replace one of its orders by another price, quantity or trigger.

    The order is cancelled, and the new one sent once the venue has confirmed that: never are both
    open. `quantity` is that of both together: what was filled meanwhile is not ordered again.
    """

    price: Decimal | None = None
    quantity: Decimal | None = None
    trigger: Decimal | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.price is None and self.quantity is None and self.trigger is None:
            expected = "a price, a quantity, a trigger or several"
            _refuse("Replace.price", expected, None, mistyped=True)
        if self.price is not None:
            if self.order.price is None:
                expected = "none: the order is a market order"
                _refuse("Replace.price", expected, self.price, mistyped=False)
            force_setattr(self, "price", _price(self.price, "Replace.price"))
        if self.quantity is not None:
            force_setattr(self, "quantity", _quantity(self.quantity, "Replace.quantity"))
        if self.trigger is not None:
            if self.order.trigger is None:
                expected = "none: the order does not wait for one"
                _refuse("Replace.trigger", expected, self.trigger, mistyped=False)
            force_setattr(self, "trigger", _price(self.trigger, "Replace.trigger"))

    @property
    def changes_nothing(self) -> bool:
        """Whether the order already has these values."""
        order = self.order
        return (
            self.price in (None, order.price)
            and self.quantity in (None, order.quantity)
            and self.trigger in (None, order.trigger)
        )

    def signal(self, at: float, filled: Decimal, terms: OrderTerms) -> Signal | None:
        """Return the new order, given what was filled of the other; None: nothing is left."""
        order = self.order
        left = (order.quantity if self.quantity is None else self.quantity) - filled
        if left <= 0:
            return None
        return Signal(
            symbol=order.symbol,
            side=order.side,
            at=at,
            quantity=left,
            type=OrderType.MARKET if order.price is None else OrderType.LIMIT,
            price=order.price if self.price is None else self.price,
            intent_type=terms.intent_type,
            reason=terms.reason,
            time_in_force=terms.time_in_force,
            stop=terms.exits.stop if terms.exits else None,
            target=terms.exits.target if terms.exits else None,
            trail=terms.exits.trail if terms.exits else None,
            trigger=order.trigger if self.trigger is None else self.trigger,
        )


Instruction = Signal | Cancel | Replace

_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = 80


def _refuse(field: str, expected: str, value: object, *, mistyped: bool) -> NoReturn:
    kind = TypeError if mistyped else ValueError
    name = field if "." in field else f"Signal.{field}"
    raise kind(f"{name}: expected {expected}, got {_shown.repr(value)}") from None


def _choice(field: str, choices: type[Choice], value: object) -> Choice:
    expected = " or ".join(choices)
    if not isinstance(value, str):
        _refuse(field, expected, value, mistyped=True)
    try:
        return choices(value.upper())
    except ValueError:
        _refuse(field, expected, value, mistyped=False)


def _convert_size(signal: Signal) -> None:
    """Convert `value`, `share` and `risk`; refuse a signal with two sizes."""
    sizes = ("quantity", "value", "share", "risk")
    given = [name for name in sizes if getattr(signal, name) is not None]
    if len(given) > 1:
        expected = f"one size ({', '.join(sizes)})"
        _refuse(given[1], expected, f"{given[0]} and {given[1]}", mistyped=False)
    if signal.value is not None:
        force_setattr(signal, "value", _quantity(signal.value, "value"))
        return
    name = given[0]
    force_setattr(signal, name, _part(name, getattr(signal, name), "of the equity, from 0 to 1"))
    if name == "risk" and signal.stop is None:
        _refuse("risk", "a stop beside it: the risk is what is lost there", None, mistyped=False)


def _convert_exits(signal: Signal) -> None:
    for name in ("stop", "target"):
        if (price := getattr(signal, name)) is not None:
            force_setattr(signal, name, _price(price, name))
    if signal.trail is not None:
        trail = _part("trail", signal.trail, "of the price, above 0 and below 1")
        if not 0 < trail < 1:
            _refuse("trail", "a part of the price, above 0 and below 1", trail, mistyped=False)
        force_setattr(signal, "trail", trail)


def _part(field: str, value: object, of: str) -> Decimal:
    number = _decimal(field, expected := f"a part {of}", value)
    if not (number.is_finite() and 0 <= number <= 1):
        _refuse(field, expected, value, mistyped=False)
    return number


def _quantity(value: object, field: str = "quantity") -> Decimal:
    number = _decimal(field, expected := "a number, zero or more", value)
    if not (number.is_finite() and 0 <= number < MAX_NUMBER):
        _refuse(field, expected, value, mistyped=False)
    return number


def _price(value: object, field: str = "price") -> Decimal:
    number = _decimal(field, expected := "a positive number", value)
    if not (number.is_finite() and MIN_PRICE <= number < MAX_NUMBER):
        _refuse(field, expected, value, mistyped=False)
    return number


def _decimal(field: str, expected: str, value: object) -> Decimal:
    """Return the decimal number that `value` prints as."""
    if type(value) is Decimal:
        return value
    if isinstance(value, bool) or not isinstance(value, Real | str | Decimal):
        _refuse(field, expected, value, mistyped=True)
    try:
        return Decimal(str(value))
    except InvalidOperation:
        _refuse(field, expected, value, mistyped=False)


def _epoch_seconds(value: object) -> float:
    expected = "epoch seconds or a datetime with a time zone"
    if isinstance(value, datetime):
        if value.tzinfo is None:
            _refuse("at", expected, value, mistyped=False)
        return _epoch_seconds(value.timestamp())
    if isinstance(value, bool) or not isinstance(value, Real):
        _refuse("at", expected, value, mistyped=True)
    try:
        at = float(value)
    except OverflowError:
        at = math.inf
    if not 0 <= at < MAX_AT_S:
        _refuse("at", expected, value, mistyped=False)
    return at


def _confidence(value: object) -> float:
    number = _decimal("confidence", expected := "a number", value)
    if not number.is_finite() or not math.isfinite(confidence := float(number)):
        _refuse("confidence", expected, value, mistyped=False)
    return confidence


def _lifetime(value: object) -> TimeInForce | float:
    expected = "IOC, FOK, DAY, GTC or a number of seconds"
    if isinstance(value, str) and value.upper() in TimeInForce.__members__:
        return TimeInForce(value.upper())
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    number = _decimal("time_in_force", expected, seconds)
    if not (number.is_finite() and 0 < number <= MAX_LIFETIME_S):
        expected = f"IOC, FOK, DAY, GTC or seconds, above 0 and up to {MAX_LIFETIME_S}"
        _refuse("time_in_force", expected, value, mistyped=False)
    return float(number)


def _symbol(value: object) -> str:
    if not isinstance(value, str):
        _refuse("symbol", "a text", value, mistyped=True)
    if not value.strip() or not value.isprintable():
        _refuse("symbol", "a symbol", value, mistyped=False)
    return str(value)


def _reason(value: object) -> str:
    """Return the text; PostgreSQL stores neither NUL nor half of a surrogate pair."""
    if not isinstance(value, str):
        _refuse("reason", "a text", value, mistyped=True)
    return value.encode("utf-8", "replace").decode().replace("\0", "?")
