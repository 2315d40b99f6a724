"""Worker processes of one contender: they drain together, or say how late each event came."""

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

_LOOK_S = 0.001
_LONGEST_S = 60.0

_spawn = multiprocessing.get_context("spawn")


class Crew:
    """Processes that wait for orders; started once, as starting takes longer than a drain."""

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
        """Events a second, from the word to begin until the last one was handled; and the
        microseconds that the worker processes computed for one event."""
        with self._working(workers, events) as begin:
            began = begin()
            self._until(events, began)
            rate = events / (time.perf_counter() - began)
        return rate, sum(cpu_s for _, cpu_s in self._answers) / events * 1e6

    def deliver(self, events: int, publish: Callable[[], None]) -> list[float]:
        """Milliseconds from publish to handler of each event, with one worker."""
        with self._working(1, 0) as begin:
            began = begin()
            publish()
            self._until(events, began)
        return [took_ns / 1e6 for took_ns in self._answers[0][0]]

    @contextmanager
    def _working(self, workers: int, events: int) -> Iterator[Callable[[], float]]:
        pipes = self._pipes[:workers]
        for place in range(len(self._counts)):
            self._counts[place] = 0
        for pipe in pipes:
            pipe.send("drain" if events else "deliver")
        self._answer(pipes)

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
            self._answers = self._answer(pipes)

    def _until(self, events: int, began: float) -> None:
        while sum(self._counts) < events:
            time.sleep(_LOOK_S)
            if time.perf_counter() - began > _LONGEST_S:
                raise OperationError(
                    f"{sum(self._counts)} of {events} events after {_LONGEST_S:g} s"
                )

    def _answer(self, pipes: list[Pipe]) -> list[Any]:
        answers = []
        for pipe in pipes:
            if not pipe.poll(_LONGEST_S):
                raise OperationError(f"a worker process gave no answer in {_LONGEST_S:g} s")
            answers.append(pipe.recv())
        return answers

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


def _serve(kind: str, url: str, pipe: Pipe, counts: Any, place: int) -> None:
    logging.disable(logging.CRITICAL)  # all of them tell of every worker that ends
    telemetry.configure(TelemetryConfig(log_level="error"))
    while True:
        try:
            order = pipe.recv()
        except EOFError:
            return
        uvloop.run(_work(kind, Secret(url), pipe, order == "drain", counts, place))


async def _work(kind: str, url: Secret, pipe: Pipe, drains: bool, counts: Any, place: int) -> None:
    took_ns: list[int] = []

    def count(events: int, _at_ns: int) -> None:
        counts[place] += events

    def note(events: int, at_ns: int) -> None:
        took_ns.append(time.monotonic_ns() - at_ns)
        counts[place] += events

    loop, told = asyncio.get_running_loop(), asyncio.Event()
    async with KINDS[kind].open(url) as queue:
        pipe.send("ready")
        loop.add_reader(pipe.fileno(), told.set)
        await told.wait()
        pipe.recv()
        told.clear()
        before_s = time.process_time()
        try:
            await queue.work(count if drains else note, told)
        finally:
            loop.remove_reader(pipe.fileno())
            os.set_blocking(pipe.fileno(), True)  # the loop had changed that
        pipe.recv()
        cpu_s = time.process_time() - before_s
    pipe.send((took_ns, cpu_s))
