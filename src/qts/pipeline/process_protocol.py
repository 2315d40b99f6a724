"""A turn of a strategy that runs in a process of its own, and what goes over the line to it.

Hello ─▶ Ready      once
Turn  ─▶ Answers    one at a time: the ticks that waited, or one evaluation
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec

from qts.domain import Account, Position, Tick
from qts.strategies import Signal, View

LENGTH = struct.Struct("<I")

Signals = tuple[Signal | str, ...]  # what is no signal is kept as it looks


class StrategyHello(msgspec.Struct, frozen=True, array_like=True, tag="h"):
    name: str  # module:Class
    params: dict[str, Any]


class StrategyRequest(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """The view is told by what changed in it since the turn before."""

    params: tuple[dict[str, Any], ...]  # set meanwhile, in order
    ticks: tuple[Tick, ...]
    evaluate: bool
    changed: tuple[Tick, ...]
    now: datetime
    positions: tuple[Position, ...]
    account: Account
    equity: Decimal
    version: int

    def view(self, ticks: dict[str, Tick]) -> View:
        held = {each.symbol: each for each in self.positions}
        return View(self.now, ticks, held, self.account, self.equity, self.version)


class StrategyReady(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    pass


class StrategyFailed(msgspec.Struct, frozen=True, array_like=True, tag="b"):
    why: str


class StrategyReply(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """What each call answered, in order; one that raised answered nothing."""

    signals: tuple[Signals, ...]
    errors: dict[int, str]  # by the number of the call


_encoder = msgspec.msgpack.Encoder(enc_hook=repr)
_asks: msgspec.msgpack.Decoder[StrategyHello | StrategyRequest] = msgspec.msgpack.Decoder(
    StrategyHello | StrategyRequest
)
_says: msgspec.msgpack.Decoder[StrategyReady | StrategyFailed | StrategyReply] = (
    msgspec.msgpack.Decoder(StrategyReady | StrategyFailed | StrategyReply)
)
read_ask, read_say = _asks.decode, _says.decode


def frame(
    record: StrategyHello | StrategyRequest | StrategyReady | StrategyFailed | StrategyReply,
) -> bytes:
    data = _encoder.encode(record)
    return LENGTH.pack(len(data)) + data


def call(method: Callable[..., Iterable[Signal]], *arguments: Any) -> list[Signal] | Exception:
    """What a strategy answers, or what it raised: anything."""
    try:
        return list(method(*arguments) or ())
    except Exception as error:  # noqa: BLE001 - a strategy may raise anything
        return error
