"""The latest quotes, positions and limits, a fast memory beside the database."""

from qts._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
