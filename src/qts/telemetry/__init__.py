"""Logs, context ids, metrics and traces: how QTS tells what it does."""

from qts._exports import lazy_exports

# A function and a module of one name: bound here, before the module can take its place.
from qts.telemetry.context import context as context
from qts.telemetry.latency import latency as latency

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
