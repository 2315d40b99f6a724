"""Messages between roles, as MessagePack.

feed ─▶ strategies, execution      FeedFrame, FeedHeartbeat     core NATS, numbered
strategies, execution ─▶ feed      WatchRequest, NewestRequest  core NATS
strategies ─▶ execution            SignalMessage                JetStream
execution ─▶ strategies            ReportMessage                JetStream
"""

from __future__ import annotations

from decimal import Decimal

import msgspec

from qts.domain import OrderBook, OrderSnapshot, Position, Tick
from qts.feed import FeedStatus, Surge
from qts.pipeline import PortfolioState, StrategyUpdate
from qts.strategies import Instruction
from qts.venues import IndexQuote


class TickRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A tick, the base price of its symbol, and the number of the frame that it was sent in."""

    symbol: str
    price: float
    volume: float
    bid: float
    ask: float
    at: float
    venue_at: float
    base: float
    number: int = 0

    @classmethod
    def of(cls, tick: Tick, base: float, number: int) -> TickRow:
        prices = tick.price, tick.volume, tick.bid, tick.ask
        return cls(tick.symbol, *prices, tick.at, tick.venue_at, base, number)

    def tick(self, now: float) -> Tick:
        """Return the tick as it is received now; a clock that is ahead makes none of the future."""
        prices = self.price, self.volume, self.bid, self.ask
        return Tick(self.symbol, *prices, min(self.at, now), self.venue_at)


class FeedFrame(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """What a feed delivered within a millisecond; frames of a publisher are numbered from 1.

    As the answer to a NewestRequest: the newest ticks, of all frames up to `number`.
    """

    publisher: str
    number: int
    ticks: tuple[TickRow, ...] = ()
    books: tuple[OrderBook, ...] = ()
    indices: tuple[IndexQuote, ...] = ()
    volumes: tuple[Surge, ...] = ()


class FeedHeartbeat(msgspec.Struct, frozen=True, array_like=True, tag="h"):
    """Sign of life of a feed: the number of its last frame, and the ages of watched prices."""

    publisher: str
    number: int
    status: FeedStatus
    ages: dict[str, float]


class WatchRequest(msgspec.Struct, frozen=True, array_like=True):
    """Symbols that are held or on order, most important first."""

    symbols: tuple[str, ...]
    on_order: tuple[str, ...]


class NewestRequest(msgspec.Struct, frozen=True, array_like=True):
    """Request for the newest tick of each symbol that has one in a frame after this number."""

    after: int


class SignalMessage(msgspec.Struct, frozen=True, array_like=True):
    """What a strategy returned; `seen` is the last report that its role had applied by then."""

    id: str
    strategy_key: str
    decided_at: float  # seconds since the Unix epoch
    after_order: bool
    seen: tuple[str, int]  # publisher and number
    instructions: tuple[Instruction, ...]


class StrategyReport(msgspec.Struct, frozen=True, array_like=True):
    """What happened to an order of a strategy; a fill that is reported twice has the same id."""

    id: str
    strategy_key: str
    update: StrategyUpdate


class ReportMessage(msgspec.Struct, frozen=True, array_like=True):
    """The account as it is now, and what happened to orders since the last report."""

    publisher: str
    number: int
    takes_signals: bool  # positions are known, and the pipeline is not suspended
    cash: Decimal
    positions: tuple[Position, ...]
    owners: dict[str, str]
    orders: tuple[OrderSnapshot, ...]
    reports: tuple[StrategyReport, ...] = ()

    @property
    def state(self) -> PortfolioState:
        return PortfolioState(
            self.cash,
            {each.symbol: each for each in self.positions},
            self.owners,
            {each.intent_id: each for each in self.orders},
        )


encode = msgspec.msgpack.Encoder(enc_hook=repr).encode
_feed: msgspec.msgpack.Decoder[FeedFrame | FeedHeartbeat] = msgspec.msgpack.Decoder(
    FeedFrame | FeedHeartbeat
)
decode_feed = _feed.decode
decode_watch = msgspec.msgpack.Decoder(WatchRequest).decode
decode_newest = msgspec.msgpack.Decoder(NewestRequest).decode
decode_signals = msgspec.msgpack.Decoder(SignalMessage).decode
decode_report = msgspec.msgpack.Decoder(ReportMessage).decode


def happening_of(update: StrategyUpdate) -> str:
    """Return what happened to which order, as the ledger would name it too."""
    if update.fill is not None:
        return f"fill {update.fill.broker_order_id} {update.fill.trade_id}"
    return "" if update.order is None else f"order {update.order.intent_id} {update.order.state}"
