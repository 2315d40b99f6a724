"""The KIS Open API: client, quotes, stream."""

from qts.venues.kis.client import KisClient, Reply, Service
from qts.venues.kis.frames import Fill
from qts.venues.kis.quotes import KisQuotes, symbols_per_call
from qts.venues.kis.session import open_kis
from qts.venues.kis.stream import KisStream

__all__ = [
    "Fill",
    "KisClient",
    "KisQuotes",
    "KisStream",
    "Reply",
    "Service",
    "open_kis",
    "symbols_per_call",
]
