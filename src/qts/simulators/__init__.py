"""KIS and Upbit as servers, with a moving market inside and faults on demand."""

from qts.simulators.clock import SimulatedClock
from qts.simulators.config import (
    KisKey,
    KisSimulatorConfig,
    MarketConfig,
    UpbitKey,
    UpbitSimulatorConfig,
)
from qts.simulators.faults import Fault
from qts.simulators.kis.simulator import KisSimulator
from qts.simulators.server import Simulator
from qts.simulators.upbit.simulator import UpbitSimulator
from qts.simulators.window import Limits

__all__ = [
    "Fault",
    "KisKey",
    "KisSimulator",
    "KisSimulatorConfig",
    "Limits",
    "MarketConfig",
    "SimulatedClock",
    "Simulator",
    "UpbitKey",
    "UpbitSimulator",
    "UpbitSimulatorConfig",
]
