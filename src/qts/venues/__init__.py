"""KIS and Upbit as they are: keys, wire formats, streams, and one request budget per key."""

from qts.venues.body import Leaving
from qts.venues.budget import Budget, BudgetState
from qts.venues.config import KisConfig, UpbitConfig, VenuesConfig
from qts.venues.errors import NotOffered, Rejected, Throttled
from qts.venues.kis import (
    Fill,
    KisClient,
    KisQuotes,
    KisStream,
    Service,
    open_kis,
    symbols_per_call,
)
from qts.venues.ledger import Ledger
from qts.venues.limits import LimitsConfig, Priority, Room, room
from qts.venues.quote import Book, Level, Quote
from qts.venues.upbit import UpbitClient, UpbitStream

__all__ = [
    "Book",
    "Budget",
    "BudgetState",
    "Fill",
    "KisClient",
    "KisConfig",
    "KisQuotes",
    "KisStream",
    "Leaving",
    "Ledger",
    "Level",
    "LimitsConfig",
    "NotOffered",
    "Priority",
    "Quote",
    "Rejected",
    "Room",
    "Service",
    "Throttled",
    "UpbitClient",
    "UpbitConfig",
    "UpbitStream",
    "VenuesConfig",
    "open_kis",
    "room",
    "symbols_per_call",
]
