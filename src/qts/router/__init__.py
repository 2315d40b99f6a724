"""Python interface of the native two-stage message router: scenario, plan, run, report."""

from qts._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
