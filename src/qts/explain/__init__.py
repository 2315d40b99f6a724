"""Explanation of a day: why a run earned something else than its backtest."""

from qts._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
