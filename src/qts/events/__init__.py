"""Events in four lanes, P0 to P3: the contract, the catalogue, the lanes and the engine."""

from qts._exports import lazy_exports

# A function and a module of one name: bound here, before the module can take its place.
from qts.events.handlers import rows as rows

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
