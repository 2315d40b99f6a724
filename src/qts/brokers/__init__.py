"""Our orders in a venue's words: paper, KIS and Upbit behind one port."""

from qts.brokers.broker import Blocked, Broker, Found, Lost, Notice
from qts.brokers.config import ACKNOWLEDGEMENT, BrokersConfig, CostsConfig, PaperConfig
from qts.brokers.kis import KisBroker
from qts.brokers.matching import Matching
from qts.brokers.paper import PaperBroker
from qts.brokers.upbit import UpbitBroker

__all__ = [
    "ACKNOWLEDGEMENT",
    "Blocked",
    "Broker",
    "BrokersConfig",
    "CostsConfig",
    "Found",
    "KisBroker",
    "Lost",
    "Matching",
    "Notice",
    "PaperBroker",
    "PaperConfig",
    "UpbitBroker",
]
