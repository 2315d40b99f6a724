"""Worker of a cluster: claims trials of any study in a database and runs them in processes.

A claim is a lease. The worker renews the leases of what it runs; one that is killed lets them
expire, and another worker gets its trials. At a regular end it returns them at once.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from uuid import UUID, uuid4

import msgspec

import qts
from qts.database import Database
from qts.domain import OperationError, RefusedError
from qts.optimise.cluster import decode_context
from qts.optimise.plan import code_digest
from qts.optimise.trial import Task, Trial, TrialContext
from qts.optimise.worker_pool import MAX_ATTEMPTS, WorkerPool
from qts.strategies import load_strategy

LEASE_S = 30.0
POLL_S = 0.2
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
    """Runs trials in `processes` processes until `stop`; `report` takes lines for the operator."""

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
                    idle_s += POLL_S
                    await asyncio.sleep(POLL_S)
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
            trial = await asyncio.to_thread(pool.poll, POLL_S)
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
