"""KIS and Upbit as they are: keys, wire formats, streams, and one request budget per key."""

from qts._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
