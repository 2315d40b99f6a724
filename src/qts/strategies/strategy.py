"""The Strategy base class and what it works with: `View` is its input, `Signal` its output.

    class Breakout(Strategy[Params], key="breakout"):
        def on_tick(self, tick, view): ...      after every tick of its symbols
        def evaluate(self, view): ...           once per cycle

Both return signals. The pipeline sizes them, the pre-trade gate approves or refuses the resulting
orders, and the order manager sends the approved ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar, get_args

import msgspec

from qts.domain import Account, IntentType, OrderType, Position, RefusedError, Side, Tick

P = TypeVar("P", bound=msgspec.Struct)
StrategyKind = Literal["SCALP", "SWING", "PORTFOLIO"]


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
    `at` is the time of the tick or bar behind the decision. Signals with the same strategy, symbol,
    side and `at` are the same signal and lead to one order.
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
