"""Our orders in a venue's words: paper, KIS and Upbit behind one port."""

from qts._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
