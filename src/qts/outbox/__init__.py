"""The durable bus: events published with the caller's transaction, handled at least once."""

from qts.outbox.bus import Consumer, DeadLetter, Delivery, EventBus, EventDispatcher, Handler
from qts.outbox.carried import CarriedBus
from qts.outbox.config import (
    BACKTEST_COMMAND,
    BACKTEST_EVENT,
    SYSTEM_EVENT,
    TRADE_COMMAND,
    TRADE_EVENT,
    WORKERS,
    KafkaBusConfig,
    NatsBusConfig,
    OutboxConfig,
    StreamConfig,
)
from qts.outbox.desk import Desk, EventRow, paused
from qts.outbox.dispatcher import Dispatcher
from qts.outbox.envelope import Envelope, Event, uuid7
from qts.outbox.errors import EventRefused, Permanent, Retryable, Unknown
from qts.outbox.kafka import KafkaBus
from qts.outbox.nats import NatsBus
from qts.outbox.once import once
from qts.outbox.opening import open_bus, open_carried
from qts.outbox.postgres import PostgresBus
from qts.outbox.relay import Relay
from qts.outbox.speed import BenchResult, bench
from qts.outbox.upkeep import Depth, Upkeep, depths
from qts.outbox.worker import OutboxWorker

__all__ = [
    "BACKTEST_COMMAND",
    "BACKTEST_EVENT",
    "SYSTEM_EVENT",
    "TRADE_COMMAND",
    "TRADE_EVENT",
    "WORKERS",
    "BenchResult",
    "CarriedBus",
    "Consumer",
    "DeadLetter",
    "Delivery",
    "Depth",
    "Desk",
    "Dispatcher",
    "Envelope",
    "Event",
    "EventBus",
    "EventDispatcher",
    "EventRefused",
    "EventRow",
    "Handler",
    "KafkaBus",
    "KafkaBusConfig",
    "NatsBus",
    "NatsBusConfig",
    "OutboxConfig",
    "OutboxWorker",
    "Permanent",
    "PostgresBus",
    "Relay",
    "Retryable",
    "StreamConfig",
    "Unknown",
    "Upkeep",
    "bench",
    "depths",
    "once",
    "open_bus",
    "open_carried",
    "paused",
    "uuid7",
]
