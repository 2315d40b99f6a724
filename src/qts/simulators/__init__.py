"""Servers that simulate KIS and Upbit, with a moving market and faults on demand."""

from qts._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
