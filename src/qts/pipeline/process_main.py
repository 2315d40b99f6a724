"""The process of a strategy: `python -m qts.pipeline.strategy_process FD`, started by `Apart`.

It takes one turn after the other from the socket and answers each. It dies with the run that
started it, and gives way to everything that trades.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

import msgspec

from qts._native import die_with_parent
from qts.domain import Tick
from qts.pipeline.process_protocol import (
    LENGTH,
    Signals,
    StrategyFailed,
    StrategyHello,
    StrategyReady,
    StrategyReply,
    StrategyRequest,
    call,
    frame,
    read_ask,
)
from qts.strategies import Signal, Strategy, load_strategy

NICE = 10  # orders and prices get the processor first


def main() -> None:
    parent = os.getppid()
    die_with_parent(parent)
    if os.getppid() != parent:
        return
    os.nice(NICE)
    with socket.socket(fileno=int(sys.argv[1])) as line:
        serve(line)


def serve(line: socket.socket) -> None:
    """Until the other side closes."""
    hello = _next(line)
    if not isinstance(hello, StrategyHello):
        return
    try:
        kind = load_strategy(hello.name)
        strategy = kind.from_params(hello.params)
    except Exception as error:  # noqa: BLE001 - whatever a strategy raises when it is made
        line.sendall(frame(StrategyFailed(f"{type(error).__name__}: {error}")))
        return
    line.sendall(frame(StrategyReady()))
    work = _Work(strategy)
    while isinstance(turn := _next(line), StrategyRequest):
        line.sendall(frame(work.take(turn)))


class _Work:
    def __init__(self, strategy: Strategy[Any]) -> None:
        self._strategy = strategy
        self._ticks: dict[str, Tick] = {}

    def take(self, turn: StrategyRequest) -> StrategyReply:
        strategy = self._strategy
        for params in turn.params:
            strategy.set_params(strategy.parse_params(params))
        self._ticks.update((tick.symbol, tick) for tick in turn.changed)
        view = turn.view(self._ticks.copy())
        answers = [call(strategy.on_tick, tick, view) for tick in turn.ticks]
        if turn.evaluate:
            answers.append(call(strategy.evaluate, view))
        errors = {n: repr(each) for n, each in enumerate(answers) if isinstance(each, Exception)}
        signals = (() if isinstance(each, Exception) else _sound(each) for each in answers)
        return StrategyReply(tuple(signals), errors)


def _sound(found: list[Signal]) -> Signals:
    """As the other side can read them: what is no signal is told as it looks."""
    return tuple(each if _is_signal(each) else repr(each) for each in found)


def _is_signal(found: object) -> bool:
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=Signal)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError):
        return False
    return isinstance(found, Signal)


def _next(line: socket.socket) -> StrategyHello | StrategyRequest | None:
    head = _exactly(line, LENGTH.size)
    data = _exactly(line, LENGTH.unpack(head)[0]) if head else b""
    return read_ask(data) if data else None


def _exactly(line: socket.socket, size: int) -> bytes:
    """Nothing when the other side has closed."""
    data = bytearray(size)
    place = memoryview(data)
    while place:
        count = line.recv_into(place)
        if not count:
            return b""
        place = place[count:]
    return bytes(data)


if __name__ == "__main__":
    main()
