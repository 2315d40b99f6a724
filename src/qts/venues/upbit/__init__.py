"""The Upbit Open API: client, stream."""

from qts.venues.upbit.client import UpbitClient
from qts.venues.upbit.stream import UpbitStream

__all__ = ["UpbitClient", "UpbitStream"]
