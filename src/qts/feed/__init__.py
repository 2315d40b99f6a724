"""The market as it comes in: plan, poll, notice what moves, observe, record, replay."""

from qts._exports import lazy_exports

# A function and a module of one name: bound here, before the module can take its place.
from qts.feed.replay import replay as replay

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
