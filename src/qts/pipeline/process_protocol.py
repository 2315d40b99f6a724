"""Messages between a run and the process of an isolated strategy.

StrategyHello   ─▶ StrategyReady   once
StrategyRequest ─▶ StrategyReply   one at a time: updates, then bars and ticks or one evaluation;
                                   or a moment alone
"""

from __future__ import annotations

import struct
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec

from qts.domain import Account, OrderBook, OrderSnapshot, Position, Tick
from qts.pipeline.strategy_call import BarInput, CallError, Moment, StrategyUpdate
from qts.pipeline.strategy_config import StrategyConfig
from qts.strategies import Instruction, View

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
