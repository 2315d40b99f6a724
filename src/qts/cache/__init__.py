"""The latest quotes, positions and limits, a fast memory beside the database."""

from qts.cache.book import Book, Level
from qts.cache.cache import Cache, Change, PreCheck
from qts.cache.config import BreakerConfig, CacheConfig, Ttls
from qts.cache.inspect import ServerStatus, look, read_raw
from qts.cache.kept import Truth
from qts.cache.order import OrderStatus
from qts.cache.position import Position
from qts.cache.price import Price
from qts.cache.risk import Risk
from qts.cache.status import Alert, CacheStatus
from qts.cache.store import Store
from qts.cache.strategy import StrategyParams
from qts.cache.trades import TradeIds
from qts.cache.value import Value

__all__ = [
    "Alert",
    "Book",
    "BreakerConfig",
    "Cache",
    "CacheConfig",
    "CacheStatus",
    "Change",
    "Level",
    "OrderStatus",
    "Position",
    "PreCheck",
    "Price",
    "Risk",
    "ServerStatus",
    "Store",
    "StrategyParams",
    "TradeIds",
    "Truth",
    "Ttls",
    "Value",
    "look",
    "read_raw",
]
