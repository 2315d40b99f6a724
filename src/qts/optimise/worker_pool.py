"""Processes of this machine that run the tasks of a study.

    submit ─▶ waiting ─▶ worker ─▶ wait
                 ▲          │ killed
                 └──────────┘ a new worker, at most three times for one task

A worker is forked from a server that has imported everything, gets the data once, when it starts,
and one task at a time. It ends when the other end of its pipe closes, so that none outlives a
parent that was killed. Used from one thread.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from types import TracebackType
from typing import Self

from qts import telemetry
from qts.optimise.fork_server import start_fork_server
from qts.optimise.trial import Task, Trial, TrialContext, TrialRunner

MAX_ATTEMPTS = 3
END_TIMEOUT_S = 5.0


class _Worker:
    """A process, its pipe, and the task that it runs."""

    def __init__(self, context: TrialContext) -> None:
        server = start_fork_server()
        self.pipe, theirs = server.Pipe()
        self.task: Task | None = None
        self.process: ForkServerProcess = server.Process(
            target=_work, args=(theirs, context, dict(os.environ)), daemon=True, name="qts-optimise"
        )
        self.process.start()
        theirs.close()

    def end(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join(END_TIMEOUT_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class WorkerPool:
    """Runs tasks in up to `processes` workers, which start with the first tasks."""

    def __init__(self, context: TrialContext, processes: int) -> None:
        self._context = context
        self._processes = processes
        self._workers: list[_Worker] = []
        self._waiting: deque[Task] = deque()
        self._failed: deque[Trial] = deque()
        self._attempts: dict[tuple[str, int, int], int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers; what they run is lost."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid or 0 for worker in self._workers]

    def submit(self, task: Task) -> None:
        self._waiting.append(task)
        self._assign()

    def wait(self) -> Trial:
        """Return the next trial that is done, in any order."""
        while (trial := self.poll(None)) is None:
            pass
        return trial

    def poll(self, timeout_s: float | None) -> Trial | None:
        """Return a trial that is done; None where there was none in this time, or a kill."""
        if not self._failed:
            busy = {worker.pipe: worker for worker in self._workers if worker.task is not None}
            for pipe in wait(list(busy), timeout_s):
                worker = busy[pipe]  # type: ignore[index]
                try:
                    trial: Trial = worker.pipe.recv()
                except (EOFError, OSError):
                    self._replace(worker)
                else:
                    worker.task = None
                    self._assign()
                    return trial
        return self._failed.popleft() if self._failed else None

    def _assign(self) -> None:
        """Give waiting tasks to free workers; start one while there are fewer than allowed."""
        while self._waiting:
            free = next((each for each in self._workers if each.task is None), None)
            if free is None:
                if len(self._workers) == self._processes:
                    return
                free = _Worker(self._context)
                self._workers.append(free)
            free.task = self._waiting.popleft()
            try:
                free.pipe.send(free.task)
            except OSError:
                self._replace(free)

    def _replace(self, worker: _Worker) -> None:
        """Drop a worker that has ended; its task is run again, unless it ends every worker."""
        task, worker.task = worker.task, None
        self._workers.remove(worker)
        worker.end()
        if task is None:
            return
        attempts = self._attempts[task.key] = self._attempts.get(task.key, 0) + 1
        if attempts < MAX_ATTEMPTS:
            self._waiting.appendleft(task)
        else:
            code = worker.process.exitcode
            text = f"its process ended {attempts} times, the last time with exit code {code}"
            self._failed.append(Trial.failed(task, text))
        self._assign()


def _work(pipe: Connection, context: TrialContext, environ: dict[str, str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    os.environ.clear()  # that of the server may be older
    os.environ.update(environ)
    telemetry.configure(telemetry.TelemetryConfig(log_level="error"))
    runner = TrialRunner(context)
    while True:
        try:
            task: Task = pipe.recv()
            pipe.send(runner.run(task))
        except (EOFError, OSError):
            return
