"""Settings file and environment variables, combined into one validated, frozen Config."""

from qts._exports import lazy_exports

# A function and a module of one name: bound here, before the module can take its place.
from qts.config.load import load as load
from qts.config.render import render as render

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
