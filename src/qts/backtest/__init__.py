"""A strategy over recorded or simulated data: engine, report, jobs."""

from qts._exports import lazy_exports

# A function and a module of one name: bound here, before the module can take its place.
from qts.backtest.performance import performance as performance

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
