"""One call of a strategy: what it returns is checked here, so that a mistake costs it alone.

raises                        no signals, an error with the file and line of the strategy
returns what is no list       no signals, an error
returns a list with others    the signals among them, and an error

A strategy that is isolated in a process is called by messages:

StrategyHello   ─▶ StrategyReady   once
StrategyRequest ─▶ StrategyReply   one at a time: updates, then bars and ticks or one evaluation;
                                   or a moment alone
"""

from __future__ import annotations

import reprlib
import struct
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from types import CodeType
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from qts.domain import Account, Bar, Fill, OrderBook, OrderSnapshot, Position, Tick
from qts.pipeline.strategy_config import StrategyConfig
from qts.strategies import (
    Cancel,
    Instruction,
    NoState,
    Replace,
    Signal,
    Strategy,
    StrategyBars,
    View,
    encode_state,
)

RAISED, BAD_SIGNAL = "strategy raised", "strategy returned a bad signal"
_BASES = ("builtins", "typing", "qts.strategies.strategy", "qts.strategies.step")
_QTS = str(Path(__file__).parents[1])

_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = 300


class CallError(msgspec.Struct, frozen=True, array_like=True):
    """Mistake of a strategy; `event` names it in the log, `where` is `mine.py:12 in on_tick`."""

    event: str
    error: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.error} at {self.where}" if self.where else self.error

    @classmethod
    def raised(cls, error: BaseException, strategy: object) -> CallError:
        """Describe what a strategy raised, with the innermost line of its own file."""
        files = set(_files_of(type(strategy)))
        where = other = ""
        for frame, line in traceback.walk_tb(error.__traceback__):
            code = frame.f_code
            if code.co_filename in files:
                where = _place(code, line)
            elif not code.co_filename.startswith(_QTS):
                other = _place(code, line)
        return cls(RAISED, _shown.repr(error), where or other)


class StrategyUpdate(msgspec.Struct, frozen=True, array_like=True):
    """What happened to an order of a strategy: a fill, a change of its state, or both."""

    fill: Fill | None
    order: OrderSnapshot | None

    @property
    def calls(self) -> int:
        return (self.fill is not None) + (self.order is not None)


class BarInput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Bar of a strategy with the values of its indicators.

    `is_new` says that on_bar is called with it; others are history.
    """

    bar: Bar
    values: tuple[float, ...]
    is_new: bool = True


# Methods without an input of their own, each a call with one view.
Moment = Literal["on_start", "on_timer", "on_stop"]


class CallResult(NamedTuple):
    instructions: Sequence[Instruction]
    error: CallError | None


_NOTHING = CallResult((), None)


def call_strategy(
    method: Callable[..., Iterable[Instruction] | None], *arguments: Any
) -> CallResult:
    """Return what a call returned, and its first mistake if it made one."""
    try:
        found = method(*arguments)
        return check_returned(method, found) if found else _NOTHING
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a strategy may raise anything
        return CallResult([], CallError.raised(error, getattr(method, "__self__", None)))


def check_returned(method: Callable[..., Any], found: Iterable[Instruction]) -> CallResult:
    """Return the instructions in what a method returned, which may run a generator of it."""
    bad: CallError | None = None
    signals: list[Instruction] = []
    items = _items(found)
    if items is None:
        text = f"returned {_shown.repr(found)}; expected a list of signals"
        return CallResult(signals, CallError(BAD_SIGNAL, text, _line(method, found)))
    for each in items:
        if isinstance(each, Signal | Cancel | Replace):
            signals.append(each)
        elif bad is None:
            text = f"returned {_shown.repr(each)} among its signals"
            bad = CallError(BAD_SIGNAL, text, _line(method, found))
    return CallResult(signals, bad)


def call_with_update(
    strategy: Strategy[Any], update: StrategyUpdate, view: View
) -> Iterator[CallResult]:
    """Call on_fill, then on_order, with what the update has."""
    if update.fill is not None:
        yield call_strategy(strategy.on_fill, update.fill, view)
    if update.order is not None:
        yield call_strategy(strategy.on_order, update.order, view)


class MarketCalls:
    """Calls of a strategy with bars and ticks, and what it sees: its own bars and orders."""

    def __init__(self, strategy: Strategy[Any]) -> None:
        self._strategy = strategy
        self.bars = StrategyBars.of(strategy)

    def view_of(self, view: View) -> View:
        """Return the view with the strategy's own bars and orders."""
        if self.bars is None and not view.orders:
            return view
        orders = tuple(each for each in view.orders if each.strategy_key == self._strategy.key)
        return replace(view, series=self.bars, orders=orders)

    def add(self, bars: Iterable[BarInput]) -> None:
        """Keep bars without calling the strategy."""
        if self.bars is not None:
            for each in bars:
                self.bars.add(each.bar, each.values)

    def run(
        self, bars: Iterable[BarInput], ticks: Iterable[Tick], view: View
    ) -> Iterator[tuple[BarInput | Tick, CallResult | None]]:
        """Call on_bar and on_tick in order of time; a bar comes before a tick at its close.

        Yields each bar and tick with the result of its call, once it was handled; history has none.
        """
        waiting = deque(bars)
        for tick in ticks:
            while waiting and waiting[0].bar.at <= tick.at:
                yield waiting[0], self._run_bar(waiting.popleft(), view)
            yield tick, call_strategy(self._strategy.on_tick, tick, view)
        while waiting:
            yield waiting[0], self._run_bar(waiting.popleft(), view)

    def _run_bar(self, given: BarInput, view: View) -> CallResult | None:
        self.add((given,))
        if not given.is_new:
            return None
        return call_strategy(self._strategy.on_bar, given.bar, view)


class StateWatch:
    """Notices changes of the state of a strategy that has a `State`."""

    def __init__(self, strategy: Strategy[Any]) -> None:
        self._strategy = strategy
        self._known = self._encoded()

    def changed(self) -> bytes | None:
        """Return the state if it has changed since; raise RefusedError if it cannot be stored."""
        data = self._encoded()
        if data == self._known:
            return None
        self._known = data
        return data

    def _encoded(self) -> bytes:
        strategy = self._strategy
        return b"" if strategy.State is NoState else encode_state(strategy.key, strategy.state)


def has_method(strategy: Strategy[Any], name: str) -> bool:
    """Return whether the class of a strategy has a method of its own."""
    return getattr(type(strategy), name) is not getattr(Strategy, name)


def takes_updates(strategy: Strategy[Any]) -> bool:
    """Return whether a strategy has an on_fill or an on_order."""
    return has_method(strategy, "on_fill") or has_method(strategy, "on_order")


def _items(found: object) -> Iterator[Any] | None:
    """Return what to iterate; None for a text, a dict or what cannot be iterated."""
    if isinstance(found, str | bytes | dict):
        return None
    try:
        return iter(found)  # type: ignore[call-overload, no-any-return]
    except TypeError:
        return None


def _files_of(kind: type) -> Iterator[str]:
    """Yield the files of a strategy class and of its bases, without those of QTS itself."""
    for base in kind.__mro__:
        module = sys.modules.get(base.__module__)
        if base.__module__ not in _BASES and (file := getattr(module, "__file__", None)):
            yield file


def _line(method: Callable[..., Any], found: object) -> str:
    """Return the line of the yield that a generator stands at, else that of the method."""
    if (frame := getattr(found, "gi_frame", None)) is not None:
        return _place(frame.f_code, frame.f_lineno)
    code = getattr(method, "__code__", None)
    return _place(code, code.co_firstlineno) if code is not None else ""


def _place(code: CodeType, line: int) -> str:
    return f"{Path(code.co_filename).name}:{line} in {code.co_name}"


LENGTH = struct.Struct("<I")

Instructions = tuple[Instruction, ...]


class StrategyHello(msgspec.Struct, frozen=True, array_like=True, tag="h"):
    instance: StrategyConfig
    state: bytes | None = None  # None: a new one


class StrategyRequest(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """Calls to make; the view is sent as its changes since the last request."""

    params: tuple[dict[str, Any], ...]  # set since the last request, in order
    updates: tuple[StrategyUpdate, ...]
    ticks: tuple[Tick, ...]
    evaluate: bool
    changed: tuple[Tick, ...]
    now: datetime
    positions: tuple[Position, ...]
    account: Account
    equity: Decimal
    version: int
    books: tuple[OrderBook, ...] = ()  # changed since the last request
    bars: tuple[BarInput, ...] = ()
    moment: Moment | None = None
    orders: tuple[OrderSnapshot, ...] = ()

    def view(self, ticks: dict[str, Tick], books: dict[str, OrderBook]) -> View:
        held = {each.symbol: each for each in self.positions}
        portfolio = held, self.account, self.equity, self.version
        return View(self.now, ticks, *portfolio, books, orders=self.orders)


class StrategyReady(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    pass


class StrategyFailed(msgspec.Struct, frozen=True, array_like=True, tag="b"):
    why: str


class StrategyReply(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """What each call returned, in order, and the mistakes of those that made one."""

    returned: tuple[Instructions, ...]
    errors: dict[int, CallError]  # by call number
    state: bytes | None = None  # None: as before
    state_error: str = ""  # why it cannot be stored


_encoder = msgspec.msgpack.Encoder(enc_hook=repr)
_requests: msgspec.msgpack.Decoder[StrategyHello | StrategyRequest] = msgspec.msgpack.Decoder(
    StrategyHello | StrategyRequest
)
_replies: msgspec.msgpack.Decoder[StrategyReady | StrategyFailed | StrategyReply] = (
    msgspec.msgpack.Decoder(StrategyReady | StrategyFailed | StrategyReply)
)
decode_request, decode_reply = _requests.decode, _replies.decode


def frame(
    record: StrategyHello | StrategyRequest | StrategyReady | StrategyFailed | StrategyReply,
) -> bytes:
    data = _encoder.encode(record)
    return LENGTH.pack(len(data)) + data
