"""The Strategy base class and what it works with: `View` is its input, `Signal` its output.

    class Breakout(Strategy[Params], key="breakout"):
        def on_tick(self, tick, view): ...      after every tick of its symbols
        def evaluate(self, view): ...           once per cycle

Both return signals. The pipeline sizes them, the pre-trade gate approves or refuses the resulting
orders, and the order manager sends the approved ones.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from numbers import Real
from typing import Any, ClassVar, Generic, Literal, NoReturn, Self, TypeVar, get_args

import msgspec
from msgspec.structs import force_setattr

from qts.domain import (
    Account,
    IntentType,
    Market,
    OrderType,
    Position,
    RefusedError,
    Side,
    Tick,
    TimeInForce,
    market_for_symbol,
)

P = TypeVar("P", bound=msgspec.Struct)
Choice = TypeVar("Choice", bound=StrEnum)
StrategyKind = Literal["SCALP", "SWING", "PORTFOLIO"]

MAX_NUMBER = Decimal(10) ** 18  # prices and quantities beyond it are mistakes
MIN_PRICE = 1 / MAX_NUMBER
MAX_LIFETIME_S = 31_536_000  # a year
MAX_AT_S = 1e11  # the year 5138: epoch milliseconds are refused


class View(msgspec.Struct, frozen=True):
    """Read-only snapshot of the portfolio."""

    now: datetime
    ticks: Mapping[str, Tick]  # last tick of every symbol
    positions: Mapping[str, Position]
    account: Account
    equity: Decimal
    version: int = 0  # number of portfolio changes, if counted

    def quantity(self, symbol: str) -> Decimal:
        position = self.positions.get(symbol)
        return position.quantity if position else Decimal(0)


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """Request of a strategy to trade a symbol.

    Without a quantity, an entry is as large as one order may be and an exit closes the position.
    `time_in_force` is how long the order may stay at the venue: IOC, DAY (until midnight in Seoul),
    GTC (not for stocks, whose orders end with the day), or seconds as a number or a timedelta. What
    is not filled by then is cancelled.
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
        if self.price is not None:
            force_setattr(self, "price", _price(self.price))
        if type(self.confidence) is not float or not math.isfinite(self.confidence):
            force_setattr(self, "confidence", _confidence(self.confidence))
        if type(self.symbol) is not str or not self.symbol.isalnum():
            force_setattr(self, "symbol", _symbol(self.symbol))
        if self.time_in_force is not TimeInForce.DAY:
            force_setattr(self, "time_in_force", _lifetime(self.symbol, self.time_in_force))
        if type(self.reason) is not str or self.reason:
            force_setattr(self, "reason", _reason(self.reason))


_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = 80


def _refuse(field: str, expected: str, value: object, *, mistyped: bool) -> NoReturn:
    kind = TypeError if mistyped else ValueError
    raise kind(f"Signal.{field}: expected {expected}, got {_shown.repr(value)}") from None


def _choice(field: str, choices: type[Choice], value: object) -> Choice:
    expected = " or ".join(choices)
    if not isinstance(value, str):
        _refuse(field, expected, value, mistyped=True)
    try:
        return choices(value.upper())
    except ValueError:
        _refuse(field, expected, value, mistyped=False)


def _quantity(value: object) -> Decimal:
    number = _decimal("quantity", expected := "a number, zero or more", value)
    if not (number.is_finite() and 0 <= number < MAX_NUMBER):
        _refuse("quantity", expected, value, mistyped=False)
    return number


def _price(value: object) -> Decimal:
    number = _decimal("price", expected := "a positive number", value)
    if not (number.is_finite() and MIN_PRICE <= number < MAX_NUMBER):
        _refuse("price", expected, value, mistyped=False)
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


def _lifetime(symbol: str, value: object) -> TimeInForce | float:
    expected = "IOC, DAY, GTC or a number of seconds"
    if isinstance(value, str) and value.upper() in TimeInForce.__members__:
        choice = TimeInForce(value.upper())
        if choice is TimeInForce.GTC and market_for_symbol(symbol) is Market.KRX:
            expected = "IOC, DAY or seconds for a stock, whose orders end with the day"
            _refuse("time_in_force", expected, value, mistyped=False)
        return choice
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    number = _decimal("time_in_force", expected, seconds)
    if not (number.is_finite() and 0 < number <= MAX_LIFETIME_S):
        expected = f"IOC, DAY, GTC or seconds, above 0 and up to {MAX_LIFETIME_S}"
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


class NoParams(msgspec.Struct, frozen=True):
    """Parameters of a strategy that has none."""


class Strategy(Generic[P]):
    """Base class of strategies; the type argument is a struct of parameters with defaults."""

    key: ClassVar[str]
    kind: ClassVar[StrategyKind] = "SCALP"
    Params: ClassVar[type[msgspec.Struct]] = NoParams

    def __init_subclass__(cls, *, key: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.key = key or cls.__name__.lower()
        for base in getattr(cls, "__orig_bases__", ()):
            for argument in get_args(base):
                if isinstance(argument, type) and issubclass(argument, msgspec.Struct):
                    cls.Params = argument

    def __init__(self, params: P) -> None:
        self.params = params

    def set_params(self, params: P) -> None:
        """Replace the parameters while the strategy runs; its state is kept."""
        self.params = params

    @classmethod
    def from_params(cls, params: Mapping[str, Any] | None = None) -> Self:
        """Create the strategy; values may be texts, missing parameters take their defaults."""
        return cls(cls.parse_params(params or {}))  # type: ignore[arg-type]

    @classmethod
    def parse_params(cls, params: Mapping[str, Any]) -> msgspec.Struct:
        fields = cls.Params.__struct_fields__
        for name in params:
            if name not in fields:
                raise RefusedError(
                    f"strategy {cls.key} has no parameter {name!r}; it has {', '.join(fields)}"
                )
        try:
            return msgspec.convert(dict(params), cls.Params, strict=False)
        except msgspec.ValidationError as error:
            raise RefusedError(f"strategy {cls.key}: {error}") from None

    # ruff: noqa: ARG002 - subclasses use the arguments
    def wants(self, symbol: str) -> bool:
        """Return whether the strategy takes ticks of this symbol; override to restrict it."""
        return True

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        return ()

    def evaluate(self, view: View) -> Iterable[Signal]:
        return ()
