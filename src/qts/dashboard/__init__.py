"""The operator's view of a run: web pages, terminal and the live status they read."""

from qts._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
