"""The owner's view in a terminal: the same figures as the dashboard, also over ssh."""

from qts._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
