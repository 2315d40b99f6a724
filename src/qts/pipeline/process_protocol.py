"""Messages between a run and the process of an isolated strategy.

StrategyHello   ─▶ StrategyReady   once
StrategyRequest ─▶ StrategyReply   one at a time: the queued ticks, or one evaluation
"""

from __future__ import annotations

import struct
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec

from qts.domain import Account, Position, Tick
from qts.pipeline.strategy_call import CallError
from qts.strategies import Signal, View

LENGTH = struct.Struct("<I")

Signals = tuple[Signal, ...]


class StrategyHello(msgspec.Struct, frozen=True, array_like=True, tag="h"):
    name: str  # module:Class
    params: dict[str, Any]


class StrategyRequest(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """Calls to make; the view is sent as its changes since the last request."""

    params: tuple[dict[str, Any], ...]  # set since the last request, in order
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
    """Signals of each call, in order, and the mistakes of those that made one."""

    signals: tuple[Signals, ...]
    errors: dict[int, CallError]  # by call number


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
