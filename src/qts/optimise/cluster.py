"""Cluster: trials of a study in PostgreSQL, and the workers on any machine that run them.

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
import os
import socket
import zlib
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import UUID, uuid4

import msgspec
import numpy as np

import qts
from qts.backtest import BacktestConfig, BarTape
from qts.database import Database
from qts.domain import Instrument, Instruments, OperationError, RefusedError, Timeframe
from qts.optimise.study import code_digest
from qts.optimise.trial import Task, Trial, TrialContext
from qts.optimise.worker_pool import MAX_ATTEMPTS, WorkerPool
from qts.outbox import uuid7
from qts.pipeline import StrategyConfig
from qts.strategies import load_strategy

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


LEASE_S = 30.0
CLAIM_POLL_S = 0.2
RETRY_S = 1.0

_STUDIES = (
    "SELECT id, name, identity FROM study"
    " WHERE id <> ALL($1::uuid[]) AND seen_at > clock_timestamp() - interval '1 minute'"
)
_CONTEXT = "SELECT context FROM study WHERE id = $1"
_CLAIM = (
    "UPDATE study_trial SET worker = $1, attempts = attempts + 1,"
    " lease_until = clock_timestamp() + make_interval(secs => $2) WHERE id = ("
    " SELECT t.id FROM study_trial t JOIN study s ON s.id = t.study_id"
    " WHERE t.study_id = ANY($3::uuid[]) AND t.result IS NULL AND t.attempts < $4"
    " AND s.seen_at > clock_timestamp() - interval '1 minute'"
    " AND (t.lease_until IS NULL OR t.lease_until < clock_timestamp())"
    " ORDER BY t.id LIMIT 1 FOR UPDATE OF t SKIP LOCKED) RETURNING id, study_id, task"
)
_RENEW = (
    "UPDATE study_trial SET lease_until = clock_timestamp() + make_interval(secs => $2)"
    " WHERE worker = $1 AND result IS NULL"
)
_STORE = "UPDATE study_trial SET result = $2, lease_until = NULL WHERE id = $1 AND result IS NULL"
_RETURN = (
    "UPDATE study_trial SET worker = NULL, lease_until = NULL, attempts = attempts - 1"
    " WHERE worker = $1 AND result IS NULL"
)


class ClusterWorker:
    """Runs trials of any study in processes until `stop`; `report` takes lines for the operator.

    A claim is a lease. The worker renews the leases of what it runs; one that is killed lets them
    expire, and another worker gets its trials. At a regular end it returns them at once.
    """

    def __init__(
        self,
        database: Database,
        processes: int,
        report: Callable[[str], None],
        *,
        lease_s: float = LEASE_S,
        idle_s: float | None = None,
    ) -> None:
        self._database = database
        self._processes = processes
        self._report = report
        self._lease_s = lease_s
        self._idle_s = idle_s
        self._name = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self._sources: dict[UUID, str | None] = {}  # of known studies; None: refused
        self._contexts: dict[UUID, TrialContext] = {}
        self._looking = asyncio.Lock()
        self._stopping = asyncio.Event()
        self.trials = 0  # run so far

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        """Run trials until `stop`, or until there was none for the idle time."""
        renewing = asyncio.create_task(self._renew())
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._processes):
                    group.create_task(self._serve())
        finally:
            renewing.cancel()
            await self._database.execute(_RETURN, self._name)

    async def _serve(self) -> None:
        pool: WorkerPool | None = None
        of: UUID | None = None
        idle_s = 0.0
        try:
            while not self._stopping.is_set():
                found = await self._claimed()
                if found is None:
                    if self._idle_s is not None and idle_s >= self._idle_s:
                        return
                    idle_s += CLAIM_POLL_S
                    await asyncio.sleep(CLAIM_POLL_S)
                    continue
                idle_s, (row, study, task) = 0.0, found
                if pool is None or of != study:
                    if pool is not None:
                        await asyncio.to_thread(pool.close)
                        pool = None
                    if (context := await self._context(study)) is None:
                        continue
                    pool, of = WorkerPool(context, 1), study
                trial = await self._run(pool, task)
                if trial is not None:
                    await self._stored(row, trial)
        finally:
            if pool is not None:
                await asyncio.to_thread(pool.close)

    async def _run(self, pool: WorkerPool, task: Task) -> Trial | None:
        """Return the trial; None where the worker stops before it is done."""
        await asyncio.to_thread(pool.submit, task)
        while not self._stopping.is_set():
            trial = await asyncio.to_thread(pool.poll, CLAIM_POLL_S)
            if trial is not None:
                self.trials += 1
                return trial
        return None

    async def _claimed(self) -> tuple[int, UUID, Task] | None:
        try:
            await self._look_for_studies()
            taken = [study for study, source in self._sources.items() if source is not None]
            values = self._name, self._lease_s, taken, MAX_ATTEMPTS
            row = await self._database.fetchrow(_CLAIM, *values) if taken else None
        except OperationError as error:
            self._report(f"no trial claimed; retrying: {error}")
            await asyncio.sleep(RETRY_S)
            return None
        if row is None:
            return None
        return row["id"], row["study_id"], msgspec.json.decode(row["task"], type=Task)

    async def _look_for_studies(self) -> None:
        """Check the strategies of studies that are new; those of other code are not taken."""
        async with self._looking:
            known = list(self._sources)
            for study, name, identity in await self._database.fetch(_STUDIES, known):
                try:
                    self._sources[study] = _local_source(identity)
                    self._report(f"study {name}: taken")
                except RefusedError as error:
                    self._sources[study] = None
                    self._report(f"study {name}: not taken: {error}")

    async def _context(self, study: UUID) -> TrialContext | None:
        """Return what the trials of a study share; None where it has ended meanwhile."""
        async with self._looking:
            if study not in self._contexts:
                data = await self._database.fetchval(_CONTEXT, study)
                if data is None:
                    return None
                self._contexts = {study: decode_context(data, self._sources[study])}
            return self._contexts[study]

    async def _stored(self, row: int, trial: Trial) -> None:
        while True:
            try:
                await self._database.execute(_STORE, row, msgspec.json.encode(trial))
            except OperationError as error:
                self._report(f"a result not stored; retrying: {error}")
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            try:
                await self._database.execute(_RENEW, self._name, self._lease_s)
            except OperationError as error:
                self._report(f"leases not renewed; retrying: {error}")


def _local_source(identity: dict[str, str]) -> str:
    """Return where this machine has the class of a study; refuse another version of it."""
    if identity["qts"] != qts.__version__:
        raise RefusedError(f"it needs QTS {identity['qts']}, this is {qts.__version__}")
    source = identity["source"]
    where, colon, kind = source.rpartition(":")
    if colon and where.endswith(".py") and not Path(where).is_file():
        here = Path(Path(where).name).resolve()
        if not here.is_file():
            raise RefusedError(f"neither {where} nor {here} exists; copy the strategy's file")
        source = f"{here}:{kind}"
    if code_digest(load_strategy(source)) != identity["code"]:
        raise RefusedError(f"{source} is another version; copy that of the study")
    return source
