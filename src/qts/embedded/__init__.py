"""Embedded PostgreSQL, Valkey and NATS servers, run as child processes."""

from qts._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
