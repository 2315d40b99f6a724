"""The durable bus: events published with the caller's transaction, handled at least once."""

from qts._exports import lazy_exports

# A function and a module of one name: bound here, before the module can take its place.
from qts.outbox.once import once as once

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
