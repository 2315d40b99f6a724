"""Process of a lane as the engine holds it; spawned, because the engine has threads."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import threading
import time
from multiprocessing.context import SpawnProcess

from qts.domain import OperationError
from qts.events.catalogue import Catalogue
from qts.events.process import protocol
from qts.events.process.main import LaneChildSetup, run_child

_START_TIMEOUT_S = 60.0
_POLL_S = 0.05


class LaneChild:
    """Process with its two rings."""

    def __init__(
        self, process: SpawnProcess, codec: protocol.FrameCodec, rings: list[protocol.Memory]
    ) -> None:
        self._process = process
        self._began = time.monotonic()
        self.codec = codec
        self.to_child, self.from_child = (protocol.open_ring(each) for each in rings)

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def uptime_s(self) -> float:
        return time.monotonic() - self._began

    def set_mode(self, paused: bool, critical_only: bool) -> None:
        self.to_child.flag = critical_only
        self.to_child.pause(paused)

    def exit_reason(self) -> str:
        code = self._process.exitcode
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def close(self) -> None:
        self._process.close()


def start_child(
    setup: LaneChildSetup, catalogue: Catalogue, stop: threading.Event
) -> tuple[LaneChild, dict[str, list[str]]]:
    """Start a process and wait for its handlers; return it with their kinds by type.

    The process is killed when the calling thread ends. Raises OperationError.
    """
    rings = [protocol.shared_memory(), protocol.shared_memory()]
    process = multiprocessing.get_context("spawn").Process(
        target=run_child, args=(setup, *rings), name=f"qts-events-p{setup.lane}", daemon=True
    )
    lane = f"P{setup.lane}'s process"
    try:
        process.start()
    except (OSError, RuntimeError, pickle.PicklingError, AttributeError, TypeError) as error:
        reason = " ".join(str(error).split())  # some texts have several lines
        raise OperationError(f"{lane} could not be started: {reason}") from None
    child = LaneChild(process, protocol.FrameCodec(catalogue), rings)
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not stop.is_set() and time.monotonic() < deadline:
        alive = child.is_alive()
        data = child.from_child.pop(_POLL_S)
        if data is None and not alive:
            reason = f"it {child.exit_reason()} before it was ready"
            child.close()
            raise OperationError(
                f"{lane} did not start: {reason}; "
                'start the engine under `if __name__ == "__main__"`'
            )
        record = child.codec.read_record(data) if data is not None else None
        if isinstance(record, protocol.LaneChildReady):
            return child, record.kinds
        if isinstance(record, protocol.LaneChildFailed):
            child.kill()
            child.close()
            raise OperationError(f"{lane} could not create its handlers: {record.reason}")
    child.kill()
    child.close()
    raise OperationError(f"{lane} was not ready after {_START_TIMEOUT_S:g} s")
