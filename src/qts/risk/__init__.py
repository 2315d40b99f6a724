"""What may be ordered, and what must be sold: the gate, the stops, the fail-safe, the switches."""

from qts._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
