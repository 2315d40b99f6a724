"""Roles of one system in separate processes, joined by NATS."""

from qts._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
