"""One call of a strategy: what it returns is checked here, so that a mistake costs it alone.

raises                        no signals, an error with the file and line of the strategy
returns what is no list       no signals, an error
returns a list with others    the signals among them, and an error
"""

from __future__ import annotations

import reprlib
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import msgspec

from qts.strategies import Signal

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


class CallResult(NamedTuple):
    signals: list[Signal]
    error: CallError | None


def call_strategy(method: Callable[..., Iterable[Signal]], *arguments: Any) -> CallResult:
    """Return the signals of a call, and its first mistake if it made one."""
    bad: CallError | None = None
    signals: list[Signal] = []
    try:
        found = method(*arguments)
        if not found:
            return CallResult(signals, None)
        items = _items(found)
        if items is None:
            text = f"returned {_shown.repr(found)}; expected a list of signals"
            return CallResult(signals, CallError(BAD_SIGNAL, text, _line(method, found)))
        for each in items:
            if isinstance(each, Signal):
                signals.append(each)
            elif bad is None:
                text = f"returned {_shown.repr(each)} among its signals"
                bad = CallError(BAD_SIGNAL, text, _line(method, found))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a strategy may raise anything
        return CallResult([], CallError.raised(error, getattr(method, "__self__", None)))
    return CallResult(signals, bad)


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
