"""Starting and ending the process of a lane; spawned, never forked: the engine has threads."""

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

_START_S = 60.0
_LOOK_S = 0.05


class LaneChild:
    """One process with its two rings."""

    def __init__(
        self, process: SpawnProcess, codec: protocol.FrameCodec, rings: list[protocol.Memory]
    ) -> None:
        self._process = process
        self._began = time.monotonic()
        self.codec = codec
        self.inbox, self.outbox = (protocol.open_ring(each) for each in rings)

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def alive(self) -> bool:
        return self._process.is_alive()

    def lived_s(self) -> float:
        return time.monotonic() - self._began

    def steer(self, paused: bool, critical_only: bool) -> None:
        self.inbox.flag = critical_only
        self.inbox.pause(paused)

    def how_it_ended(self) -> str:
        code = self._process.exitcode
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def join(self, seconds: float) -> bool:
        self._process.join(seconds)
        return not self._process.is_alive()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def close(self) -> None:
        self._process.close()


def start_child(
    setup: LaneChildSetup, catalogue: Catalogue, stop: threading.Event
) -> tuple[LaneChild, dict[str, list[str]]]:
    """A process that has made its handlers, and their kinds by type.

    It is killed when the calling thread ends.
    """
    rings = [protocol.shared_memory(), protocol.shared_memory()]
    process = multiprocessing.get_context("spawn").Process(
        target=run_child, args=(setup, *rings), name=f"qts-events-p{setup.lane}", daemon=True
    )
    lane = f"P{setup.lane}'s process"
    try:
        process.start()
    except (OSError, RuntimeError, pickle.PicklingError, AttributeError, TypeError) as error:
        why = " ".join(str(error).split())  # one of them has a whole paragraph to say
        raise OperationError(f"{lane} could not be started: {why}") from None
    running = LaneChild(process, protocol.FrameCodec(catalogue), rings)
    end = time.monotonic() + _START_S
    while not stop.is_set() and time.monotonic() < end:
        alive = running.alive()
        data = running.outbox.pop(_LOOK_S)
        if data is None and not alive:
            why = f"it {running.how_it_ended()} before it was ready"
            running.close()
            raise OperationError(f"{lane} did not start: {why}{_hint()}")
        told = running.codec.read_record(data) if data is not None else None
        if isinstance(told, protocol.LaneChildReady):
            return running, told.kinds
        if isinstance(told, protocol.LaneChildFailed):
            running.kill()
            running.close()
            raise OperationError(f"{lane} could not make its handlers: {told.why}")
    running.kill()
    running.close()
    raise OperationError(f"{lane} was not ready after {_START_S:g} s")


def _hint() -> str:
    return '; does the program start its engine under `if __name__ == "__main__"`?'
