"""PostgreSQL and Valkey for a machine that has none, as children of this process."""

from qts._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
