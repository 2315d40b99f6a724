"""Events in four lanes, P0 to P3: the contract, the catalogue, the lanes and the engine."""

from qts._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
