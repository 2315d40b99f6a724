"""Cache of quotes, positions and limits in front of the database: near cache and Redis."""

from qts._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
