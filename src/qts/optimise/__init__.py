"""Optimisation: a search for parameters, with figures on data that the search has not seen."""

from qts._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
