"""Orders that are neither lost nor doubled: desk, executor, ledger, reconciler."""

from qts._exports import lazy_exports

# A function and a module of one name: bound here, before the module can take its place.
from qts.orders.freeze import freeze as freeze
from qts.orders.standing import standing as standing

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
