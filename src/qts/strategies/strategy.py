"""The port: a strategy sees ticks and positions, and says what it wants.

    class Breakout(Strategy[Params], key="breakout"):
        def on_tick(self, tick, view): ...      after every tick of its symbols
        def evaluate(self, view): ...           once a cycle

Both answer with signals. A strategy neither sizes its orders beyond what it wishes nor sends them:
risk and the portfolio cut them down, the gate may refuse them, the desk sends what is left.
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
    """The world at one moment."""

    now: datetime
    ticks: Mapping[str, Tick]  # the latest of every symbol
    positions: Mapping[str, Position]
    account: Account
    equity: Decimal
    version: int = 0  # changes that the world had seen, where they are counted

    def quantity(self, symbol: str) -> Decimal:
        position = self.positions.get(symbol)
        return position.quantity if position else Decimal(0)


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """What a strategy wants. Without a quantity: as much as one order may be, or all that is held.

    `at` is the moment that was decided on (the tick, the close of a bar): the same strategy,
    symbol, side and moment is the same signal, however often it is given.
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
    """Of a strategy that has none."""


class Strategy(Generic[P]):
    """Derive from it; the type argument is the struct of its parameters, each with a default."""

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
        """The owner set others while it runs; what it has learnt stays."""
        self.params = params

    @classmethod
    def from_params(cls, params: Mapping[str, Any] | None = None) -> Self:
        """With these parameters, texts allowed; the others have their defaults."""
        return cls(cls.parse_params(params or {}))  # type: ignore[arg-type]

    @classmethod
    def parse_params(cls, params: Mapping[str, Any]) -> msgspec.Struct:
        known = cls.Params.__struct_fields__
        for name in params:
            if name not in known:
                raise RefusedError(
                    f"strategy {cls.key} has no parameter {name!r}; it has {', '.join(known)}"
                )
        try:
            return msgspec.convert(dict(params), cls.Params, strict=False)
        except msgspec.ValidationError as error:
            raise RefusedError(f"strategy {cls.key}: {error}") from None

    # ruff: noqa: ARG002 - the arguments are for those who derive from it
    def wants(self, symbol: str) -> bool:
        """Whether ticks of this symbol are its business; all are, unless it says otherwise."""
        return True

    def on_tick(self, tick: Tick, view: View) -> Iterable[Signal]:
        return ()

    def evaluate(self, view: View) -> Iterable[Signal]:
        return ()
