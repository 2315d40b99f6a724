"""The composition root: turns settings into a running system. Only here adapters are named."""

from qts._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
