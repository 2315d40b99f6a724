"""Our orders in a venue's words: paper, KIS and Upbit behind one port."""

from qts.brokers.broker import Blocked, Broker, Found, Lost, Notice

__all__ = ["Blocked", "Broker", "Found", "Lost", "Notice"]
