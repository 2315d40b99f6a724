"""What the executor and the reconciler of one broker work with."""

from __future__ import annotations

from dataclasses import dataclass

from qts.brokers import Broker
from qts.database import Database
from qts.domain import Clock
from qts.orders.config import OrdersConfig
from qts.orders.ledger import Ledger
from qts.orders.safety import Safety
from qts.outbox import EventBus


@dataclass(frozen=True)
class Floor:
    database: Database
    bus: EventBus
    broker: Broker
    ledger: Ledger
    safety: Safety
    config: OrdersConfig
    clock: Clock
