"""The native multi-stage pipeline seen from Python: scenario, plan, run, report."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qts.router.document import shipped
from qts.router.live import LiveLine, Snapshot, watch
from qts.router.pacing import Burst, Pacing
from qts.router.plan import Layout, Plan, Wait, Worker, plan
from qts.router.report import Percentiles, Place, Report, StallFloor, StrategyCount
from qts.router.scenario import Scenario, load

if TYPE_CHECKING:
    from qts.router.handlers import MESSAGE, Handler, batch, compiled, each
    from qts.router.journal import JournalConfig
    from qts.router.router import Options, Router

# Names that need the C++ core, which is loaded when one of them is asked for: checking a scenario
# or printing a list does not need it.
_NATIVE = {
    "MESSAGE": "handlers",
    "Handler": "handlers",
    "JournalConfig": "journal",
    "Options": "router",
    "Router": "router",
    "batch": "handlers",
    "compiled": "handlers",
    "each": "handlers",
}

__all__ = [
    "MESSAGE",
    "Burst",
    "Handler",
    "JournalConfig",
    "Layout",
    "LiveLine",
    "Options",
    "Pacing",
    "Percentiles",
    "Place",
    "Plan",
    "Report",
    "Router",
    "Scenario",
    "Snapshot",
    "StallFloor",
    "StrategyCount",
    "Wait",
    "Worker",
    "batch",
    "compiled",
    "each",
    "load",
    "plan",
    "shipped",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name in _NATIVE:
        return getattr(import_module(f"qts.router.{_NATIVE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
