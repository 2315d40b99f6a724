"""Events in four lanes, P0 to P3: the contract, the catalogue, the lanes and the engine."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qts.events import payloads
from qts.events.catalogue import Catalogue, EventType
from qts.events.config import EventsConfig, LaneConfig
from qts.events.dead_letters import DeadLetter, DeadLetters
from qts.events.event import Event, Priority
from qts.events.handlers import Handler, Publisher, batch, compiled, factory, rows
from qts.events.load import Level, Pressure
from qts.events.payloads import Payload

if TYPE_CHECKING:
    from qts.events.desk import DeadLetterDesk, KeptLetter
    from qts.events.engine import Engine
    from qts.events.isolation import (
        IsolationLoad,
        IsolationReport,
        LaneReport,
        NaiveReport,
        verify_isolation,
    )
    from qts.events.lanes import AUDIT, DEEDS, RECORD, replay
    from qts.events.life import Stopped
    from qts.events.monitor import SLA, Alert, Hooks
    from qts.events.status import LaneStatus, Latency, Status

# Loaded when asked for: settings and refusals do not need the C++ core, nor a database.
_NATIVE = {
    "AUDIT": "lanes",
    "DEEDS": "lanes",
    "RECORD": "lanes",
    "SLA": "monitor",
    "Alert": "monitor",
    "DeadLetterDesk": "desk",
    "Engine": "engine",
    "Hooks": "monitor",
    "KeptLetter": "desk",
    "IsolationLoad": "isolation",
    "IsolationReport": "isolation",
    "LaneReport": "isolation",
    "LaneStatus": "status",
    "NaiveReport": "isolation",
    "Latency": "status",
    "Status": "status",
    "Stopped": "life",
    "replay": "lanes",
    "verify_isolation": "isolation",
}

__all__ = [
    "AUDIT",
    "DEEDS",
    "RECORD",
    "SLA",
    "Alert",
    "Catalogue",
    "DeadLetter",
    "DeadLetterDesk",
    "DeadLetters",
    "Engine",
    "Event",
    "EventType",
    "EventsConfig",
    "Handler",
    "Hooks",
    "IsolationLoad",
    "IsolationReport",
    "KeptLetter",
    "LaneConfig",
    "LaneReport",
    "LaneStatus",
    "Latency",
    "Level",
    "NaiveReport",
    "Payload",
    "Pressure",
    "Priority",
    "Publisher",
    "Status",
    "Stopped",
    "batch",
    "compiled",
    "factory",
    "payloads",
    "replay",
    "rows",
    "verify_isolation",
]


def __getattr__(name: str) -> Any:
    if name in _NATIVE:
        return getattr(import_module(f"qts.events.{_NATIVE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
