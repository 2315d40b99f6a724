"""Live status in the terminal: the figures of the dashboard, also over ssh."""

from qts._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
