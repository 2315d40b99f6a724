"""Main of an isolated strategy's process: `python -m qts.pipeline.process_main FD`.

Answers one request after another from the socket. Dies with the run that started it, and runs at a
lower priority than trading.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

from qts._native import die_with_parent
from qts.domain import OrderBook, RefusedError, Tick
from qts.pipeline.strategy_call import (
    LENGTH,
    MarketCalls,
    StateWatch,
    StrategyFailed,
    StrategyHello,
    StrategyReady,
    StrategyReply,
    StrategyRequest,
    call_strategy,
    call_with_update,
    decode_request,
    frame,
)
from qts.strategies import Strategy

NICE = 10  # trading gets the CPU first


def main() -> None:
    parent = os.getppid()
    die_with_parent(parent)
    if os.getppid() != parent:
        return
    os.nice(NICE)
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        serve(sock)


def serve(sock: socket.socket) -> None:
    """Answer requests until the other side closes."""
    hello = _next(sock)
    if not isinstance(hello, StrategyHello):
        return
    try:
        strategy = hello.instance.create()
        if hello.state is not None:
            strategy.restore_state(hello.state)
    except Exception as error:  # noqa: BLE001 - a constructor may raise anything
        sock.sendall(frame(StrategyFailed(f"{type(error).__name__}: {error}")))
        return
    sock.sendall(frame(StrategyReady()))
    calls = _StrategyCalls(strategy)
    while isinstance(request := _next(sock), StrategyRequest):
        sock.sendall(frame(calls.run(request)))


class _StrategyCalls:
    def __init__(self, strategy: Strategy[Any]) -> None:
        self._strategy = strategy
        self._market = MarketCalls(strategy)
        self._ticks: dict[str, Tick] = {}
        self._books: dict[str, OrderBook] = {}
        self._state = StateWatch(strategy)

    def run(self, request: StrategyRequest) -> StrategyReply:
        strategy = self._strategy
        for params in request.params:
            strategy.set_params(strategy.parse_params(params))
        self._ticks.update((tick.symbol, tick) for tick in request.changed)
        self._books.update((book.symbol, book) for book in request.books)
        view = request.view(self._ticks.copy(), self._books)
        view = self._market.view_of(view)
        results = [
            result
            for update in request.updates
            for result in call_with_update(strategy, update, view)
        ]
        market = self._market.run(request.bars, request.ticks, view)
        results += [result for _, result in market if result is not None]
        if request.moment is not None:
            results.append(call_strategy(getattr(strategy, request.moment), view))
        if request.evaluate:
            results.append(call_strategy(strategy.evaluate, view))
        errors = {n: each.error for n, each in enumerate(results) if each.error is not None}
        returned = tuple(tuple(each.instructions) for each in results)
        try:
            return StrategyReply(returned, errors, self._state.changed())
        except RefusedError as error:
            return StrategyReply(returned, errors, None, str(error))


def _next(sock: socket.socket) -> StrategyHello | StrategyRequest | None:
    head = _exactly(sock, LENGTH.size)
    data = _exactly(sock, LENGTH.unpack(head)[0]) if head else b""
    return decode_request(data) if data else None


def _exactly(sock: socket.socket, size: int) -> bytes:
    """Return `size` bytes, or nothing when the other side has closed."""
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        count = sock.recv_into(rest)
        if not count:
            return b""
        rest = rest[count:]
    return bytes(data)


if __name__ == "__main__":
    main()
