"""Clients of the KIS and Upbit APIs: credentials, protocols, streams, rate limits per key."""

from qts._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
