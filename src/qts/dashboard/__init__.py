"""The owner's view in a browser: it reads what a run tells of itself, and acts by commands."""

from qts._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
