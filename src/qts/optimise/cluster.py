"""Trials of a study in PostgreSQL, for workers on any machine.

    submit ─▶ row ─▶ claimed with a lease (SKIP LOCKED) ─▶ result ─▶ wait
               ▲              │ the worker renews it
               └── expired ───┘ given out again, at most three times

The study's process proposes trials in the same order as with processes of its own, so its result
does not depend on the workers. The bars travel with the study; the file of the strategy does not: a
worker loads its own, and takes the study if that file is the same.
"""

from __future__ import annotations

import asyncio
import io
import zlib
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Self

import msgspec
import numpy as np

from qts.backtest import BacktestConfig, BarTape
from qts.database import Database
from qts.domain import Instrument, Instruments, RefusedError, Timeframe
from qts.optimise.trial import Task, Trial, TrialContext
from qts.optimise.worker_pool import MAX_ATTEMPTS
from qts.outbox import uuid7
from qts.pipeline import StrategyConfig

MAX_CONTEXT_MB = 512
POLL_S = 0.1
SEEN_EVERY = 20  # polls

_ADD = "INSERT INTO study (id, name, identity, context) VALUES ($1, $2, $3, $4)"
_TIDY = "DELETE FROM study WHERE seen_at < clock_timestamp() - interval '1 hour'"  # killed ones
_SEEN = "UPDATE study SET seen_at = clock_timestamp() WHERE id = $1"
_END = "DELETE FROM study WHERE id = $1"
_SUBMIT = "INSERT INTO study_trial (study_id, task) VALUES ($1, $2)"
_RESULTS = "DELETE FROM study_trial WHERE study_id = $1 AND result IS NOT NULL RETURNING result"
_GIVEN_UP = (
    "DELETE FROM study_trial WHERE study_id = $1 AND result IS NULL AND attempts >= $2"
    " AND lease_until < clock_timestamp() RETURNING task"
)

OpenDatabase = Callable[[], AbstractAsyncContextManager[Database]]


class SharedContext(msgspec.Struct, frozen=True):
    """What all trials of a study share, as it is stored."""

    strategy: StrategyConfig
    settings: BacktestConfig
    instruments: tuple[Instrument, ...]
    seed: int
    timeframe: Timeframe
    symbols: tuple[str, ...]
    rows: bytes
    before: bytes


def encode_context(context: TrialContext) -> bytes:
    tape = context.tape
    shared = SharedContext(
        context.strategy,
        context.settings,
        tuple(context.instruments[symbol] for symbol in tape.symbols),
        context.seed,
        tape.timeframe,
        tuple(tape.symbols),
        _array_bytes(tape.rows),
        _array_bytes(tape.before),
    )
    data = zlib.compress(msgspec.msgpack.encode(shared), 1)
    if len(data) > MAX_CONTEXT_MB * 2**20:
        raise RefusedError(
            f"--cluster: the bars have {len(data) >> 20:,} MB; at most {MAX_CONTEXT_MB} are sent to"
            " workers: choose fewer symbols or a shorter time"
        )
    return data


def decode_context(data: bytes, source: str | None = None) -> TrialContext:
    """Return the context; `source` is where this machine has the class of the strategy."""
    shared = msgspec.msgpack.decode(zlib.decompress(data), type=SharedContext)
    rows, before = (
        np.load(io.BytesIO(part), allow_pickle=False) for part in (shared.rows, shared.before)
    )
    tape = BarTape(shared.timeframe, shared.symbols, rows, before)
    strategy = shared.strategy
    if source is not None:
        strategy = msgspec.structs.replace(strategy, source=source)
    instruments = Instruments(shared.instruments)
    return TrialContext(strategy, tape, shared.settings, instruments, shared.seed)


def _array_bytes(rows: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, rows, allow_pickle=False)
    return file.getvalue()


class ClusterPool:
    """Gives the tasks of one study to workers of a database; used from one thread."""

    def __init__(
        self,
        open_database: OpenDatabase,
        name: str,
        identity: dict[str, str],
        context: TrialContext,
    ) -> None:
        self._open_database = open_database
        found = identity | {"source": context.strategy.source}
        self._study = uuid7(), name, found, encode_context(context)
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._found: deque[Trial] = deque()
        self._database: Database

    def __enter__(self) -> Self:
        self._runner.__enter__()
        try:
            self._runner.run(self._open())
        except BaseException:
            self._runner.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._runner.run(self._close())
        finally:
            self._runner.close()

    def submit(self, task: Task) -> None:
        data = msgspec.json.encode(task)
        self._runner.run(self._database.execute(_SUBMIT, self._study[0], data))

    def wait(self) -> Trial:
        """Return the next trial that is done, in any order."""
        if not self._found:
            self._runner.run(self._receive())
        return self._found.popleft()

    async def _open(self) -> None:
        self._database = await self._stack.enter_async_context(self._open_database())
        await self._database.execute(_TIDY)
        await self._database.execute(_ADD, *self._study)

    async def _close(self) -> None:
        async with self._stack:
            await self._database.execute(_END, self._study[0])

    async def _receive(self) -> None:
        study, polls = self._study[0], 0
        while not self._found:
            if polls % SEEN_EVERY == 0:
                await self._database.execute(_SEEN, study)
            polls += 1
            for (result,) in await self._database.fetch(_RESULTS, study):
                self._found.append(msgspec.json.decode(result, type=Trial))
            for (data,) in await self._database.fetch(_GIVEN_UP, study, MAX_ATTEMPTS):
                task = msgspec.json.decode(data, type=Task)
                text = f"the workers that ran it ended, {MAX_ATTEMPTS} times"
                self._found.append(Trial.failed(task, text))
            if not self._found:
                await asyncio.sleep(POLL_S)
