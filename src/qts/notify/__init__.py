"""Messages to the owner: trade events and alerts, once per event, on the channels he chose."""

from qts._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
