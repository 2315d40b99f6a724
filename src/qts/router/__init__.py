"""The native multi-stage pipeline seen from Python: scenario, plan, run, report."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qts.router.document import shipped
from qts.router.live import LiveLine, Snapshot, watch
from qts.router.pacing import Burst, Pacing
from qts.router.plan import Layout, Plan, Wait, Worker, plan
from qts.router.report import Percentiles, Place, Report, StallFloor, StrategyCount, Stream
from qts.router.scenario import Scenario, load
from qts.router.streams import differences, read_streams

if TYPE_CHECKING:
    from qts.router.distributed import EdgeConfig, Outlet, Sink, Source, strategies_only
    from qts.router.handlers import MESSAGE, Handler, Message, batch, compiled, each
    from qts.router.indicators import Indicator, ema, rsi, vwap
    from qts.router.journal import JournalConfig
    from qts.router.replay import Replay
    from qts.router.router import Options, Router

# Names that need the C++ core, which is loaded when one of them is asked for: checking a scenario
# or printing a list does not need it.
_NATIVE = {
    "EdgeConfig": "distributed",
    "MESSAGE": "handlers",
    "Handler": "handlers",
    "Indicator": "indicators",
    "JournalConfig": "journal",
    "Message": "handlers",
    "Options": "router",
    "Outlet": "distributed",
    "Replay": "replay",
    "Router": "router",
    "Sink": "distributed",
    "Source": "distributed",
    "batch": "handlers",
    "compiled": "handlers",
    "each": "handlers",
    "ema": "indicators",
    "rsi": "indicators",
    "strategies_only": "distributed",
    "vwap": "indicators",
}

__all__ = [
    "MESSAGE",
    "Burst",
    "EdgeConfig",
    "Handler",
    "Indicator",
    "JournalConfig",
    "Layout",
    "LiveLine",
    "Message",
    "Options",
    "Outlet",
    "Pacing",
    "Percentiles",
    "Place",
    "Plan",
    "Replay",
    "Report",
    "Router",
    "Scenario",
    "Sink",
    "Snapshot",
    "Source",
    "StallFloor",
    "StrategyCount",
    "Stream",
    "Wait",
    "Worker",
    "batch",
    "compiled",
    "differences",
    "each",
    "ema",
    "load",
    "plan",
    "read_streams",
    "rsi",
    "shipped",
    "strategies_only",
    "vwap",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name in _NATIVE:
        return getattr(import_module(f"qts.router.{_NATIVE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
