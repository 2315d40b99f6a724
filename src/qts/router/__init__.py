"""The native multi-stage pipeline seen from Python: scenario, plan, run, report."""

from qts._exports import lazy_exports

# A function and a module of one name: bound here, before the module can take its place.
from qts.router.plan import plan as plan

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
