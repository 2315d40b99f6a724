"""Events in four lanes, P0 to P3."""

from qts.events.config import EventsConfig, LaneConfig

__all__ = ["EventsConfig", "LaneConfig"]
