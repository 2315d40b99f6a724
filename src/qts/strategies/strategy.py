"""The Strategy base class and what it works with: `View` is its input, `Signal` its output.

    class Breakout(Strategy[Params], key="breakout"):
        symbols = ("005930",)                   without it, all symbols
        timeframes = ("1m", "1d")               bars that on_bar receives
        indicators = ("ema(20)",)               of these bars: view.indicator

        def on_tick(self, tick, view): ...      after every tick of its symbols
        def on_bar(self, bar, view): ...        after every bar of its symbols and timeframes
        def on_fill(self, fill, view): ...      after every fill of its orders
        def on_order(self, order, view): ...    after every change of state of its orders
        def on_timer(self, view): ...           every timer_s seconds
        def evaluate(self, view): ...           once per cycle

on_start and on_stop are called before the first and after the last of these. They return signals,
and cancels and replacements of their orders; on_stop only cancels. The pipeline sizes the signals,
the pre-trade gate approves or refuses the resulting orders, and the order manager sends the
approved ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar, get_args

import msgspec
from msgspec import inspect

from qts.domain import (
    Account,
    Bar,
    Fill,
    OrderBook,
    OrderSnapshot,
    Position,
    RefusedError,
    Tick,
    name_choices,
)
from qts.router import BarIndicator
from qts.strategies.bars import Bars, StrategyBars
from qts.strategies.signal import Cancel, Instruction

_ZERO = Decimal(0)
P = TypeVar("P", bound=msgspec.Struct)
StrategyKind = Literal["SCALP", "SWING", "PORTFOLIO"]

MAX_STATE_BYTES = 65_536


class View(msgspec.Struct, frozen=True):
    """Read-only snapshot of the portfolio."""

    now: datetime
    ticks: Mapping[str, Tick]  # last tick of every symbol
    positions: Mapping[str, Position]
    account: Account
    equity: Decimal
    version: int = 0  # number of portfolio changes, if counted
    books: Mapping[str, OrderBook] = {}  # the latest of each symbol, not a snapshot
    series: StrategyBars | None = None  # of a strategy with timeframes
    orders: tuple[
        OrderSnapshot, ...
    ] = ()  # of the strategy, that may still be filled; oldest first

    def quantity(self, symbol: str) -> Decimal:
        """Return the signed quantity that is held of a symbol, 0 without a position."""
        position = self.positions.get(symbol)
        return _ZERO if position is None else position.quantity

    def book(self, symbol: str) -> OrderBook | None:
        """Return the order book of a symbol; None where there is none, or only an old one."""
        book = self.books.get(symbol)
        return book if book is not None and book.is_fresh(self.now.timestamp()) else None

    def bars(self, symbol: str, timeframe: str, n: int) -> Bars:
        """Return the last `n` closed bars as a structured array, oldest first.

        Columns: at (the close), open, high, low, close, volume, value. As many bars are there as
        the strategy has received, up to 500 or its `warm_up`.
        """
        return self._series.bars(symbol, timeframe, n)

    def indicator(self, symbol: str, timeframe: str, name: str) -> float:
        """Return an indicator at the last close: `ema(20)`, `macd(12,26,9).signal`; NaN: none."""
        return self._series.indicator(symbol, timeframe, name)

    @property
    def _series(self) -> StrategyBars:
        if self.series is None:
            raise RefusedError(
                "the strategy has no timeframes; expected as in timeframes = ('1m',)"
            )
        return self.series


class NoParams(msgspec.Struct, frozen=True):
    """Parameters of a strategy that has none."""


class NoState(msgspec.Struct):
    """State of a strategy that keeps none."""


class Strategy(Generic[P]):
    """Base class of strategies; the type argument is a struct of parameters with defaults."""

    key: str  # of the class; an instance may have another name
    kind: ClassVar[StrategyKind] = "SCALP"
    symbols: Sequence[str] | None = None  # None: all
    timeframes: Sequence[str] = ()
    indicators: Sequence[str | BarIndicator] = ()
    warm_up: int | None = (
        None  # bars of each series before the first call; None: as indicators need
    )
    timer_s: float | None = None
    Params: ClassVar[type[msgspec.Struct]] = NoParams
    State: ClassVar[type[msgspec.Struct]] = NoState  # every field has a default

    def __init_subclass__(cls, *, key: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.key = key or cls.__name__.lower()
        for base in getattr(cls, "__orig_bases__", ()):
            for argument in get_args(base):
                if isinstance(argument, type) and issubclass(argument, msgspec.Struct):
                    cls.Params = argument

    def __init__(self, params: P) -> None:
        self.params = params
        self.state: Any = self._new_state()

    def set_params(self, params: P) -> None:
        """Replace the parameters while the strategy runs; its state is kept."""
        self.params = params

    @classmethod
    def from_params(
        cls,
        params: Mapping[str, Any] | None = None,
        *,
        name: str = "",
        symbols: Sequence[str] | None = None,
    ) -> Self:
        """Create the strategy; values may be texts, missing parameters take their defaults.

        `name` replaces the key of the class, `symbols` its symbols: one class runs several times.
        """
        return cls._create(cls.parse_params(params or {}), name or cls.key, symbols)

    def renewed(self) -> Self:
        """Return the same strategy, with its parameters and without its state."""
        return self._create(self.params, self.key, self.symbols)

    @classmethod
    def _create(cls, params: Any, name: str, symbols: Sequence[str] | None) -> Self:
        strategy = cls.__new__(cls)
        strategy.key = name
        if symbols is not None:
            strategy.symbols = tuple(symbols)
        cls.__init__(strategy, params)
        if symbols is not None:  # also where its constructor sets others
            strategy.symbols = tuple(symbols)
        return strategy

    def restore_state(self, data: bytes) -> None:
        """Continue with a stored state."""
        self.state = decode_state(self.key, self.State, data)

    @classmethod
    def _new_state(cls) -> msgspec.Struct:
        try:
            return cls.State()
        except TypeError:
            fields = ", ".join(
                each.name for each in msgspec.structs.fields(cls.State) if each.required
            )
            raise RefusedError(
                f"strategy {cls.key}: State must have a default for every field, not for {fields}"
            ) from None

    @classmethod
    def parse_params(cls, params: Mapping[str, Any]) -> msgspec.Struct:
        """Return the struct of parameters; raise RefusedError for an unknown or invalid one."""
        fields = cls.Params.__struct_fields__
        for name in params:
            if name not in fields:
                raise RefusedError(
                    f"strategy {cls.key} has no parameter {name!r}; expected"
                    f" {name_choices(name, fields)}"
                )
        given = {name: _listed(cls.Params, name, value) for name, value in params.items()}
        try:
            return msgspec.convert(given, cls.Params, strict=False)
        except msgspec.ValidationError as error:
            raise RefusedError(f"strategy {cls.key}: {error}") from None

    # ruff: noqa: ARG002 - subclasses use the arguments
    def wants(self, symbol: str) -> bool:
        """Return whether the strategy takes ticks and bars of this symbol."""
        return self.symbols is None or symbol in self.symbols

    def on_start(self, view: View) -> Iterable[Instruction]:
        """Prepare, once, before every other call and after the warm-up."""
        return ()

    def on_tick(self, tick: Tick, view: View) -> Iterable[Instruction]:
        """Handle a tick of one of its symbols."""
        return ()

    def on_bar(self, bar: Bar, view: View) -> Iterable[Instruction]:
        """Handle a bar that has closed; the view has it as the last one."""
        return ()

    def on_timer(self, view: View) -> Iterable[Instruction]:
        """Handle the timer, every `timer_s` seconds."""
        return ()

    def on_stop(self, view: View) -> Iterable[Cancel] | None:
        """Finish, once, when the run ends: orders may be cancelled, none is sent any more."""

    def on_fill(self, fill: Fill, view: View) -> Iterable[Instruction]:
        """Handle a fill of an order of this strategy; the view has the position after it."""
        return ()

    def on_order(self, order: OrderSnapshot, view: View) -> Iterable[Instruction]:
        """Handle a change of state of an order of this strategy."""
        return ()

    def evaluate(self, view: View) -> Iterable[Instruction]:
        """Decide once per cycle, from the view alone."""
        return ()


def _listed(params: type[msgspec.Struct], name: str, value: Any) -> Any:
    """Return the parts of a text such as 5,20 for a parameter that is a list."""
    if not isinstance(value, str) or name not in _list_fields(params):
        return value
    return [part.strip() for part in value.strip("[]() ").split(",") if part.strip()]


@cache
def _list_fields(params: type[msgspec.Struct]) -> frozenset[str]:
    lists = inspect.ListType | inspect.VarTupleType | inspect.TupleType | inspect.SetType
    found = inspect.type_info(params)
    fields = found.fields if isinstance(found, inspect.StructType) else ()
    return frozenset(each.name for each in fields if isinstance(_plain(each.type), lists))


def _plain(kind: inspect.Type) -> inspect.Type:
    return kind.type if isinstance(kind, inspect.Metadata) else kind


def encode_state(key: str, state: msgspec.Struct) -> bytes:
    """Return the stored form of a state; raise RefusedError for one that has none."""
    try:
        data = msgspec.msgpack.encode(state)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise RefusedError(f"strategy {key}: its state cannot be stored: {error}") from None
    if len(data) > MAX_STATE_BYTES:
        raise RefusedError(
            f"strategy {key}: its state has {len(data):,} bytes; at most {MAX_STATE_BYTES:,}"
        )
    return data


def decode_state(key: str, kind: type[msgspec.Struct], data: bytes) -> msgspec.Struct:
    """Restore a state; raise RefusedError naming the field that the class no longer has so.

    A field that the class has and the stored state has not takes its default.
    """
    way_out = f"; `qts ops state clear {key}` removes the stored state"
    stored: Any = msgspec.msgpack.decode(data)
    fields = msgspec.structs.fields(kind)
    known = {each.encode_name for each in fields}
    for name in stored if isinstance(stored, dict) else ():
        if name not in known:
            raise RefusedError(
                f"strategy {key}: its stored state has the field {name!r}, which State has not;"
                f" expected {name_choices(name, sorted(known))}{way_out}"
            )
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise RefusedError(
            f"strategy {key}: its stored state does not fit State: {error}{way_out}"
        ) from None
