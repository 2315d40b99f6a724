"""Notifications to the operator: trade events and alerts, once per event and channel."""

from qts._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
