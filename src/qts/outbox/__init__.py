"""The durable bus: events published with the caller's transaction, handled at least once."""

from qts._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
