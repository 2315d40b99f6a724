"""Cost of calling a Python strategy that does nothing, per message, beside the usual ways."""

from __future__ import annotations

import ctypes
import importlib
from functools import partial
from typing import Any

import numpy as np

from benchmarks.measure import Sample, Series, interleave
from benchmarks.report import Goal, Row
from qts import _native
from qts.machine import detect_topology
from qts.router import batch, compiled, each

_BATCH = 256
_ROUNDS, _QUICK_ROUNDS = 15, 3
# Messages in a trial: a few milliseconds each.
_SLOW, _MIDDLE, _FAST = 2_000, 100_000, 1_000_000
_QUICK_PART = 10


def measure(quick: bool) -> tuple[list[Row], list[str]]:
    function = _compiled_function()
    cases = _cases() | (_compiled_cases(function) if function is not None else {})
    part = _QUICK_PART if quick else 1
    trials = {
        name: partial(_trial, work, size, max(1, messages // size // part))
        for name, (work, size, messages) in cases.items()
    }
    found, _ = interleave(trials, _QUICK_ROUNDS if quick else _ROUNDS)
    notes = (
        []
        if function is not None
        else ["numba is not installed here: no compiled handler was measured"]
    )
    return _rows(found), notes


def _cases() -> dict[str, tuple[tuple[Any, ...], int, int]]:
    """Return by name: handler, messages at once, messages in a trial."""
    return {
        "each": (each(_nothing).to_native(), _BATCH, _MIDDLE),
        "ensure": (("ensure", _nothing), _BATCH, _SLOW),
        "batch": (batch(_nothing).to_native(), _BATCH, _FAST),
        "list": (("list", _nothing), _BATCH, _MIDDLE),
    }


def _compiled_cases(function: Any) -> dict[str, tuple[tuple[Any, ...], int, int]]:
    ours = compiled(function, np.zeros(1, np.int64))
    callback = compiled(_Callback())
    return {
        "compiled alone": (ours.to_native(), 1, _FAST),
        "callback alone": (callback.to_native(), 1, _SLOW),
        "compiled": (ours.to_native(), _BATCH, _FAST),
        "callback": (callback.to_native(), _BATCH, _MIDDLE),
    }


def _rows(found: dict[str, Series]) -> list[Row]:
    rows = [
        _row("plain callable", found["each"], found["ensure"], "the GIL taken for each", 150),
        _row("batch view", found["batch"], found["list"], "a list of message objects", 5),
    ]
    if "compiled" in found:
        alone, peer = found["compiled alone"], found["callback alone"]
        rows.append(_row("compiled, one at a time", alone, peer, "a ctypes callback", 10))
        whole, peer = found["compiled"], found["callback"]
        rows.append(_row("compiled", whole, peer, "a ctypes callback", 10))
    return rows


def _row(name: str, ours: Series, peer: Series, against: str, bound: float) -> Row:
    size = "" if "one" in name else f", {_BATCH} at once"
    return Row(
        name=f"Python, {name}{size}",
        metric="cost of a message",
        unit="ns",
        better="lower",
        ours=ours.median,
        peer=peer.median,
        peer_name=against,
        goals=(Goal("ours", "<", bound),),
        note=f"best {ours.low:.3g} and {peer.low:.3g}{ours.remark}",
    )


def _trial(work: tuple[Any, ...], size: int, batches: int) -> Sample:
    (cpu,) = detect_topology().choose(1)
    ns, disturbed = _native.bench_work(work, size, batches, -1 if cpu is None else cpu)
    return Sample(ns / size / batches, disturbed)


def _nothing(_given: object) -> None:
    pass


class _Callback:
    """C address of a Python function, from ctypes; every call takes the GIL."""

    def __init__(self) -> None:
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p)
        self._function = kind(lambda _messages, _count, _state: None)
        self.address = ctypes.cast(self._function, ctypes.c_void_p).value


def _compiled_function() -> Any:
    """Return a compiled function that reads the price of every message; None without numba."""
    try:
        numba: Any = importlib.import_module("numba")
    except ImportError:
        return None
    carray, words = numba.carray, _native.MESSAGE_SIZE // 8

    def add_prices(messages: Any, count: int, state: Any) -> None:
        table = carray(messages, (count, words))
        total = 0
        for row in range(count):
            total += table[row, words - 1]
        carray(state, 1)[0] = total

    pointer = numba.types.CPointer(numba.types.int64)
    return numba.cfunc(numba.types.void(pointer, numba.types.uint64, pointer))(add_prices)
