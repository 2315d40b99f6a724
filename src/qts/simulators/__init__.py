"""KIS and Upbit as servers, with a moving market inside and faults on demand."""

from qts._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
