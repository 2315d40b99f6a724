"""Worker processes of one contender: they drain together, or measure each event's latency."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from typing import Any

import uvloop

from benchmarks.peers_outbox import KINDS
from qts import telemetry
from qts.domain import OperationError, Secret
from qts.telemetry import TelemetryConfig

_POLL_S = 0.001
_TIMEOUT_S = 60.0

_spawn = multiprocessing.get_context("spawn")


class WorkerGroup:
    """Processes that wait for commands; started once, as a start takes longer than a drain."""

    def __init__(self, kind: str, url: Secret, size: int) -> None:
        self._counts: Any = _spawn.RawArray("q", size)
        self._pipes: list[Pipe] = []
        self._processes = []
        for place in range(size):
            ours, theirs = _spawn.Pipe()
            process = _spawn.Process(
                target=_serve, args=(kind, url.reveal(), theirs, self._counts, place), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def drain(self, workers: int, events: int) -> tuple[float, float]:
        """Return events a second, and the CPU time of the worker processes per event in us."""
        with self._workers(workers, events) as begin:
            began = begin()
            self._wait_handled(events, began)
            rate = events / (time.perf_counter() - began)
        return rate, sum(cpu_s for _, cpu_s in self._results) / events * 1e6

    def deliver(self, events: int, publish: Callable[[], None]) -> list[float]:
        """Return the milliseconds from publish to handler of each event, with one worker."""
        with self._workers(1, 0) as begin:
            began = begin()
            publish()
            self._wait_handled(events, began)
        return [took_ns / 1e6 for took_ns in self._results[0][0]]

    @contextmanager
    def _workers(self, workers: int, events: int) -> Iterator[Callable[[], float]]:
        pipes = self._pipes[:workers]
        for place in range(len(self._counts)):
            self._counts[place] = 0
        for pipe in pipes:
            pipe.send("drain" if events else "deliver")
        self._receive(pipes)

        def begin() -> float:
            began = time.perf_counter()
            for pipe in pipes:
                pipe.send("begin")
            return began

        try:
            yield begin
        finally:
            for pipe in pipes:
                pipe.send("stop")
            self._results = self._receive(pipes)

    def _wait_handled(self, events: int, began: float) -> None:
        while sum(self._counts) < events:
            time.sleep(_POLL_S)
            if time.perf_counter() - began > _TIMEOUT_S:
                raise OperationError(
                    f"{sum(self._counts)} of {events} events after {_TIMEOUT_S:g} s"
                )

    def _receive(self, pipes: list[Pipe]) -> list[Any]:
        results = []
        for pipe in pipes:
            if not pipe.poll(_TIMEOUT_S):
                raise OperationError(f"a worker process did not reply within {_TIMEOUT_S:g} s")
            results.append(pipe.recv())
        return results

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


def _serve(kind: str, url: str, pipe: Pipe, counts: Any, place: int) -> None:
    logging.disable(logging.CRITICAL)  # every contender logs the end of each worker
    telemetry.configure(TelemetryConfig(log_level="error"))
    while True:
        try:
            command = pipe.recv()
        except EOFError:
            return
        uvloop.run(_work(kind, Secret(url), pipe, command == "drain", counts, place))


async def _work(kind: str, url: Secret, pipe: Pipe, drains: bool, counts: Any, place: int) -> None:
    took_ns: list[int] = []

    def count(events: int, _at_ns: int) -> None:
        counts[place] += events

    def note(events: int, at_ns: int) -> None:
        took_ns.append(time.monotonic_ns() - at_ns)
        counts[place] += events

    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    async with KINDS[kind].open(url) as queue:
        pipe.send("ready")
        loop.add_reader(pipe.fileno(), stop.set)
        await stop.wait()
        pipe.recv()
        stop.clear()
        before_s = time.process_time()
        try:
            await queue.work(count if drains else note, stop)
        finally:
            loop.remove_reader(pipe.fileno())
            os.set_blocking(pipe.fileno(), True)  # add_reader made it non-blocking
        pipe.recv()
        cpu_s = time.process_time() - before_s
    pipe.send((took_ns, cpu_s))
