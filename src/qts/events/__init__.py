"""Events in four lanes, P0 to P3: the contract, the catalogue, the lanes and the engine."""

from qts.events import payloads
from qts.events.catalogue import Catalogue, EventType
from qts.events.config import EventsConfig, LaneConfig
from qts.events.dead_letters import DeadLetter, DeadLetters
from qts.events.engine import Engine, Stopped
from qts.events.event import Event, Priority
from qts.events.handlers import batch, compiled
from qts.events.isolation import IsolationReport, LaneReport, verify_isolation
from qts.events.isolation import Load as IsolationLoad
from qts.events.lanes import AUDIT, DEEDS, RECORD, replay
from qts.events.load import Level, Pressure
from qts.events.monitor import SLA, Alert, Hooks
from qts.events.payloads import Payload
from qts.events.status import LaneStatus, Latency, Status

__all__ = [
    "AUDIT",
    "DEEDS",
    "RECORD",
    "SLA",
    "Alert",
    "Catalogue",
    "DeadLetter",
    "DeadLetters",
    "Engine",
    "Event",
    "EventType",
    "EventsConfig",
    "Hooks",
    "IsolationLoad",
    "IsolationReport",
    "LaneConfig",
    "LaneReport",
    "LaneStatus",
    "Latency",
    "Level",
    "Payload",
    "Pressure",
    "Priority",
    "Status",
    "Stopped",
    "batch",
    "compiled",
    "payloads",
    "replay",
    "verify_isolation",
]
