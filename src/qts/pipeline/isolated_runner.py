"""A strategy in a process of its own: what it computes holds up nobody but itself.

    tick ─▶ inbox ─▶ STRATEGY_EVALUATE (P2) ─▶ turn ══ socket ══▶ process ══▶ answers ─▶ signals

One turn is out at a time; whatever comes meanwhile waits for the next. A process that ends is
started again, without what the strategy had learnt. One that ends time after time is given up, and
so is one that does not answer: it is killed.

While an exit is on its way, strategies in processes of their own hold still.

Nothing that trades then waits for a processor that a strategy computes on. They go on when the time
is over, whatever became of the exit. Each further exit gives it anew, but not for ever: where exits
do not end, strategies have their share, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from time import monotonic
from typing import Any

import msgspec

from qts import telemetry
from qts.domain import Tick
from qts.pipeline.decision_journal import RestartEntry, StrategyCallEntry
from qts.pipeline.process_protocol import (
    LENGTH,
    Signals,
    StrategyFailed,
    StrategyHello,
    StrategyReady,
    StrategyReply,
    StrategyRequest,
    frame,
    read_say,
)
from qts.pipeline.runner import RunnerHooks, StrategyRunner
from qts.strategies import Signal, Strategy

_ENDED = telemetry.counter(
    "qts_strategy_processes_ended_total", "processes of a strategy that ended", ("strategy",)
)

ENDS_IN_A_ROW = 5
CALM_S = 60.0  # a process that lived so long did not end of what ended the one before
PAUSE_S = 0.2

Asked = asyncio.Future[list[Signal]]


class IsolatedRunner(StrategyRunner):
    """`run` keeps its process, until cancelled."""

    def __init__(self, name: str, strategy: Strategy[Any], joints: RunnerHooks) -> None:
        super().__init__(strategy, joints)
        self._name = name
        self._taking = threading.Lock()
        self._line: asyncio.StreamWriter | None = None
        self._out: tuple[StrategyRequest, Asked | None] | None = None
        self._seen: dict[str, Tick] = {}  # what the process knows of the market
        self._heard = False  # ticks, at its last turn
        self._is_up = asyncio.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def __str__(self) -> str:
        return f"{self.key} (a process)"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def evaluate(self) -> list[Signal]:
        await self._is_up.wait()
        return await super().evaluate()

    def run_pending(self) -> None:
        """In the lane: hand the next turn over. While one is out, its answer wakes again."""
        with self._taking:
            if self._line is None or self._out is not None or self.stopped:
                return
            self._out = self._next_turn()
            if self._out is not None:  # with the lock: never to the process after this one
                self._turn_since_s = monotonic()
                self._loop.call_soon_threadsafe(self._send, frame(self._out[0]))

    def pause(self) -> None:
        """From any thread; its process computes no further until `go_on`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    # --- turns ----------------------------------------------------------------------------------

    def _next_turn(self) -> tuple[StrategyRequest, Asked | None] | None:
        """Ticks and evaluations in turn: neither keeps the other waiting for long."""
        while self._asked and self._asked[0].done():
            self._asked.popleft()
        if not self._inbox and not self._asked:
            return None
        self._heard = bool(self._inbox) and not (self._heard and self._asked)
        waiting = len(self._inbox) * self._heard
        ticks = tuple(itertools.islice(iter(self._next_tick, None), waiting))
        asked = None if self._heard else self._asked.popleft()
        params = self._take_params()
        view = self._view()
        changed = tuple(
            tick for symbol, tick in view.ticks.items() if self._seen.get(symbol) is not tick
        )
        self._seen = dict(view.ticks)
        turn = StrategyRequest(
            params,
            ticks,
            asked is not None,
            changed,
            view.now,
            tuple(view.positions.values()),
            view.account,
            view.equity,
            view.version,
        )
        return turn, asked

    def _send(self, data: bytes) -> None:
        if self._line is not None:
            self._line.write(data)

    def _answered(self, answers: StrategyReply) -> None:
        if self._out is None:
            return
        turn, asked = self._out
        found: list[Any] = []
        for number, signals in enumerate(answers.signals):
            if number in answers.errors:
                self._failed(answers.errors[number])
            else:
                self._in_a_row = 0
                found += signals
        self.signals += len(found)
        if asked is None and found:
            self._deliver(self, found)
        elif asked is not None and not asked.done():
            asked.set_result(found)
        self._note(turn, tuple(found), asked is not None)
        self._turn_since_s = None
        self._out = None
        if self._inbox or self._asked:
            self._wake(self.key)

    def _note(self, turn: StrategyRequest, found: Signals, evaluated: bool) -> None:
        if self.note is not None:
            heard, wanted = ((), (found,)) if evaluated else (found, ())
            self.note(
                StrategyCallEntry(self.key, turn.version, turn.now, turn.ticks, heard, wanted)
            )

    # --- the process ----------------------------------------------------------------------------

    async def run(self) -> None:
        ends = 0
        while True:
            began = self._loop.time()
            try:
                how = await self._one_life()
            except OSError as error:
                how = f"could not be started: {error.strerror}"
            if self.stopped:
                return
            ends = 1 if self._loop.time() - began > CALM_S else ends + 1
            _ENDED.labels(self.key).inc()
            if ends > ENDS_IN_A_ROW:
                self._give_up(f"its process ended {ends} times in a row: it {how}")
                return
            self._failed(f"its process {how}; it begins anew")
            await asyncio.sleep(PAUSE_S * ends)

    async def _one_life(self) -> str:
        """How it ended."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                self._process = process = _start(theirs.fileno())
            try:
                await self._talk(*await asyncio.open_unix_connection(sock=ours.dup()))
            except (asyncio.IncompleteReadError, OSError, msgspec.MsgspecError):
                pass  # it ended, or what it says makes no sense
            finally:
                self._lost()
                self._process = None
                process.kill()
                status = await asyncio.shield(asyncio.to_thread(process.wait))
        return f"was ended by signal {-status}" if status < 0 else f"ended with {status}"

    async def _talk(self, reader: asyncio.StreamReader, line: asyncio.StreamWriter) -> None:
        with contextlib.closing(line):
            line.write(frame(StrategyHello(self._name, msgspec.to_builtins(self.strategy.params))))
            while True:
                (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                match read_say(await reader.readexactly(length)):
                    case StrategyReady():
                        self._line = line
                        self._is_up.set()
                        self._wake(self.key)
                    case StrategyFailed(why):
                        self._give_up(why)
                        return
                    case StrategyReply() as answers:
                        self._answered(answers)

    def _lost(self) -> None:
        """Who asked is answered with nothing; the next process knows nothing."""
        with self._taking:
            self._line = None
            out, self._out = self._out, None
            waiting = [out[1] if out is not None else None, *self._asked]
            self._asked.clear()
            self._turn_since_s = None
            self._seen = {}
        self._is_up.clear()
        for asked in waiting:
            if asked is not None and not asked.done():
                asked.set_result([])
        if self.note is not None:
            self.note(RestartEntry(self.key))
        if self.stopped:
            self._is_up.set()

    def _give_up(self, why: str) -> None:
        super()._give_up(why)
        self._is_up.set()
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if (process := self._process) is not None:
            process.send_signal(number)


def _start(fd: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "qts.pipeline.process_main", str(fd)],
        pass_fds=(fd,),
        stdin=subprocess.DEVNULL,
        stdout=2,  # a strategy that prints does not spoil what the run prints
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # Ctrl-C goes to the run, which ends it in its turn
    )


HOLD_S = 0.025  # an order has left by then
LONGEST_S = 1.0
REST_S = 0.5  # after the longest


class ProcessPauser:
    def __init__(self, runners: Mapping[str, StrategyRunner]) -> None:
        self._runners = runners
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.TimerHandle | None = None
        self._since = self._rests_until = 0.0

    def __call__(self) -> None:
        """From any thread, and at once."""
        apart = [each for each in self._runners.values() if isinstance(each, IsolatedRunner)]
        if not apart or self._loop.time() < self._rests_until:
            return
        for each in apart:
            each.pause()
        self._loop.call_soon_threadsafe(self._for_a_while, apart)

    def _for_a_while(self, held: list[IsolatedRunner]) -> None:
        now = self._loop.time()
        if self._end is None:
            self._since = now
        elif now >= self._since + LONGEST_S:
            return  # its end is due
        else:
            self._end.cancel()
        ends = min(now + HOLD_S, self._since + LONGEST_S)
        self._end = self._loop.call_at(ends, self._go_on, held)

    def _go_on(self, held: list[IsolatedRunner]) -> None:
        self._end = None
        now = self._loop.time()
        if now - self._since >= LONGEST_S:
            self._rests_until = now + REST_S
        for each in held:
            each.resume()
