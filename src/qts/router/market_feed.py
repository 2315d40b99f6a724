"""Ticks of a market plane through the router, whose processors build the bars on their threads."""

from __future__ import annotations

import threading
import time

import msgspec
import numpy as np
import numpy.typing as npt

from qts import _native
from qts.domain import OperationError
from qts.machine import detect_topology
from qts.router.handlers import MESSAGE, MessageHandler
from qts.router.plan import plan_placement
from qts.router.router import Options, Router
from qts.router.scenario import Scenario

_MOST_PROCESSORS = 8
_EXPECTED_RATE = 1_000_000  # ticks a second, for the plan
_TICK_NS = 200  # of bars and indicators, for the plan
_NO_CLOCK = 2**62  # a second that no tick passes

Bytes = npt.NDArray[np.uint8]


class RouterFeed:
    """A live router whose processors are those of a market plane, a symbol always on the same one.

    Ticks and the clock are messages of one type, so that a processor receives them in order.
    """

    def __init__(self, plane: _native.MarketPlane, processors: int) -> None:
        scenario = _scenario(processors)
        plan = plan_placement(scenario, detect_topology(), workers=processors + 1, wait="park")
        self._plane = plane
        self._second = 0  # the last one that began
        self._sent = 0
        self._sending = threading.Lock()
        self._router = Router(
            scenario,
            plan,
            options=Options(stamps="off"),
            processors={
                each: MessageHandler("market", (plane, each)) for each in range(processors)
            },
            live=True,
        )
        self._router.start()

    @staticmethod
    def processors() -> int:
        """Return how many processors suit this machine."""
        return max(2, min(_MOST_PROCESSORS, detect_topology().usable - 2))

    def send_tick(self, tick: Bytes) -> None:
        """Send one live tick, which is not the clock."""
        messages, _ = self._plane.tick_messages(tick, _NO_CLOCK)
        with self._sending:
            self._send(messages)

    def send_ticks(self, ticks: Bytes) -> None:
        """Send ticks in order of time, and the clock with them."""
        with self._sending:
            messages, self._second = self._plane.tick_messages(ticks, self._second)
            self._send(messages)

    def send_clock(self, at: float) -> None:
        with self._sending:
            self._send(self._plane.clock_messages(at))

    def settle(self, timeout: float) -> None:
        """Wait until the processors have handled everything sent."""
        deadline = time.monotonic() + timeout
        while self._router.delivered < self._sent:
            if failures := self._router.failures:
                raise OperationError(f"market plane: {failures[0]}")
            if time.monotonic() > deadline:
                raise OperationError(f"ticks were still on their way after {timeout:g} s")
            time.sleep(0.0005)

    def close(self) -> None:
        self._router.stop()
        self._router.wait(5.0)
        self._router.abort()

    def _send(self, messages: Bytes) -> None:
        rows = messages.view(MESSAGE)
        accepted = self._router.push_many(rows)
        self._sent += accepted
        if accepted < len(rows):
            reason = "; ".join(self._router.failures) or "it was closed, or its rings stayed full"
            raise OperationError(f"market plane: a tick was not accepted: {reason}")


def _scenario(processors: int) -> Scenario:
    return msgspec.convert(
        {
            "scenario": "market plane",
            "duration_secs": 1,
            "producers": {
                "count": 1,
                "messages_per_sec": _EXPECTED_RATE,
                "distribution": {"msg_type_0": 1.0},
            },
            "processors": {
                "count": processors,
                "processing_times_ns": {"msg_type_0": _TICK_NS},
            },
            "strategies": {"count": 1, "processing_times_ns": {"strategy_0": 0}},
            # By symbol: order is that of a symbol, not that of all messages.
            "stage1_rules": [
                {"msg_type": 0, "processors": list(range(processors)), "by": "symbol"}
            ],
            "stage2_rules": [{"msg_type": 0, "strategy": 0, "ordering_required": False}],
        },
        Scenario,
    )
