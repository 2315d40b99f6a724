"""Outbox beside PgQueuer, Procrastinate and raw SQL, on one embedded PostgreSQL."""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import asyncpg
import numpy as np
import uvloop

from benchmarks import machine
from benchmarks.measure import Sample, Series
from benchmarks.outbox_old_snapshot import measure as measure_claims
from benchmarks.outbox_workers import WorkerGroup
from benchmarks.peers_outbox import BATCH, KINDS, Queue, installed
from benchmarks.plot import bars
from benchmarks.report import Goal, Picture, Result, Row
from qts.domain import Secret
from qts.embedded import EmbeddedConfig, EmbeddedServers, Home
from qts.router.report import draw_latency_plot

RATE = 100  # events a second while latency is measured
SETTLE_S = 0.3  # time for a consumer to start listening
PERCENTILES = (0, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9)


class Effort(NamedTuple):
    rounds: int
    singles: int  # events published one by one, in a round
    batches: int
    drained: dict[str, int]
    latency_events: int  # events with measured latency, in a round
    latency_rounds: int
    claim_events: int  # events handled while a session keeps an old snapshot


FULL = Effort(
    rounds=3,
    singles=150,
    batches=10,
    drained={"PgQueuer": 8000, "Procrastinate": 300},
    latency_events=200,
    latency_rounds=3,
    claim_events=20_000,
)
QUICK = Effort(
    rounds=1,
    singles=10,
    batches=1,
    drained={"PgQueuer": 500, "Procrastinate": 50},
    latency_events=30,
    latency_rounds=1,
    claim_events=2000,
)
DRAINED, QUICK_DRAINED = 20_000, 2000  # of ours and of raw SQL

Found = dict[str, Series]


class Bench(NamedTuple):
    """Two databases for each contender: one for the publish trials, one for the drain trials."""

    names: list[str]
    publish: dict[str, Secret]
    drain: dict[str, Secret]
    groups: dict[str, WorkerGroup]
    effort: Effort
    events: dict[str, int]


def run(quick: bool, progress: Callable[[str], None]) -> Result:
    progress("describing the machine")
    described = machine.describe(quick)
    with _bench(quick, described) as bench:
        progress("publish: one by one and in batches, every contender in turn")
        single, batched = uvloop.run(_publish(bench))
        progress("drain: with 1 worker process and with 2, every contender in turn")
        drained = {workers: _drain(bench, workers) for workers in (1, 2)}
        progress(f"publish to handler at {RATE} events a second, every contender in turn")
        latencies = _latencies(bench)
        progress("claims under an old snapshot")
        claim_rows = uvloop.run(measure_claims(bench.drain["ours"], bench.effort.claim_events))
    publish_rows = [*_publish_rows("one by one", single), *_publish_rows("in batches", batched)]
    drain_rows = [row for workers, found in drained.items() for row in _drain_rows(workers, found)]
    latency_rows = _latency_rows(latencies)
    return Result(
        machine=described,
        rows=(*publish_rows, *drain_rows, *latency_rows, *claim_rows),
        notes=tuple(_notes(described)),
        pictures=(
            Picture("outbox-publish", bars("Events published a second", publish_rows)),
            Picture("outbox-drain", bars("Events handled a second, no-op handler", drain_rows)),
            Picture("outbox-latency", _curves(latencies)),
            Picture("outbox-held", bars("A claim of 100 under an old snapshot", claim_rows)),
        ),
    )


@contextmanager
def _bench(quick: bool, described: dict[str, Any]) -> Iterator[Bench]:
    names, effort = list(installed()), QUICK if quick else FULL
    events = dict.fromkeys(names, QUICK_DRAINED if quick else DRAINED) | effort.drained
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedServers(Home.at(Path(folder) / "home"), EmbeddedConfig(), valkey=False) as servers,
    ):
        if servers.postgres is None:
            raise AssertionError("PostgreSQL did not start")
        publish, drain = uvloop.run(_databases(servers.postgres.url, names, described))
        groups: dict[str, WorkerGroup] = {}
        try:
            for name in names:
                groups[name] = WorkerGroup(name, drain[name], 2)
            yield Bench(names, publish, drain, groups, effort, events)
        finally:
            for group in groups.values():
                group.close()


async def _databases(
    url: Secret, names: list[str], described: dict[str, Any]
) -> tuple[dict[str, Secret], dict[str, Secret]]:
    made: tuple[dict[str, Secret], dict[str, Secret]] = ({}, {})
    async with _admin(url) as admin:
        version = await admin.fetchval("SHOW server_version")
        durable = await admin.fetchval("SHOW synchronous_commit")
        described["server"] = f"PostgreSQL {version}, Unix socket, synchronous_commit {durable}"
        for index, name in enumerate(names):
            for kind, urls in zip(("publish", "drain"), made, strict=True):
                await admin.execute(f"CREATE DATABASE {kind}_{index}")
                separate = urlsplit(url.reveal())._replace(path=f"/{kind}_{index}")
                urls[name] = Secret(separate.geturl())
                async with KINDS[name].open(urls[name]):
                    pass  # creates its tables
    return made


@asynccontextmanager
async def _admin(url: Secret) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url.reveal())
    try:
        yield connection
    finally:
        await connection.close()


async def _publish(bench: Bench) -> tuple[Found, Found]:
    single: dict[str, list[Sample]] = {name: [] for name in bench.names}
    batched: dict[str, list[Sample]] = {name: [] for name in bench.names}
    async with AsyncExitStack() as stack:
        queues: dict[str, Queue] = {
            name: await stack.enter_async_context(KINDS[name].open(bench.publish[name]))
            for name in bench.names
            if name != "raw SQL, no archive"
        }
        for turn in range(-1, bench.effort.rounds):
            for name, queue in queues.items():
                one = await _timed_singles(queue, bench.effort.singles)
                many = await _timed_batches(queue, bench.effort.batches)
                if turn >= 0:  # the first turn warms up
                    single[name].append(Sample(one))
                    batched[name].append(Sample(many))
    return _series(single), _series(batched)


async def _timed_singles(queue: Queue, events: int) -> float:
    began = time.perf_counter()
    for _ in range(events):
        await queue.publish(0)
    return events / (time.perf_counter() - began)


async def _timed_batches(queue: Queue, batches: int) -> float:
    took = 0.0
    for _ in range(batches):
        batch = queue.batch(BATCH)
        began = time.perf_counter()
        await queue.publish_many(batch)
        took += time.perf_counter() - began
    return batches * BATCH / took


def _drain(bench: Bench, workers: int) -> Found:
    samples: dict[str, list[Sample]] = {name: [] for name in bench.names}
    for _ in range(bench.effort.rounds):
        for name in bench.names:
            uvloop.run(_fill(bench.drain[name], name, bench.events[name]))
            rate, cpu_us = bench.groups[name].drain(workers, bench.events[name])
            samples[name].append(Sample(rate))
            samples.setdefault(f"{name} us", []).append(Sample(cpu_us))
    return _series(samples)


async def _fill(url: Secret, name: str, events: int) -> None:
    async with KINDS[name].open(url) as queue:
        if left := await queue.left():
            raise AssertionError(f"{name}: {left} events not drained")
        for start in range(0, events, BATCH):
            await queue.publish_many(queue.batch(min(BATCH, events - start)))
    async with _admin(url) as admin:
        await admin.execute("VACUUM ANALYZE")
        await admin.execute("CHECKPOINT")  # else it may run during a trial


def _latencies(bench: Bench) -> dict[str, list[float]]:
    names = [name for name in bench.names if not name.startswith("raw")]
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(bench.effort.latency_rounds):
        for name in names:
            publish = functools.partial(_publish_paced, bench, name)
            found[name] += bench.groups[name].deliver(bench.effort.latency_events, publish)
    return found


def _publish_paced(bench: Bench, name: str) -> None:
    uvloop.run(_pace(bench, name))


async def _pace(bench: Bench, name: str) -> None:
    async with KINDS[name].open(bench.drain[name]) as queue:
        await asyncio.sleep(SETTLE_S)
        due = time.monotonic()
        for _ in range(bench.effort.latency_events):
            due += 1 / RATE
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await queue.publish(time.monotonic_ns())
        await asyncio.sleep(SETTLE_S)  # time for the last wake-up


def _series(samples: dict[str, list[Sample]]) -> Found:
    return {name: Series(tuple(got)) for name, got in samples.items() if got}


def _publish_rows(how: str, found: Found) -> Iterator[Row]:
    goals = {"raw SQL": (Goal("ratio", ">=", 0.8),)} if how == "in batches" else {}
    names = {"raw SQL": "COPY, both tables"} if how == "in batches" else {}
    for peer in [name for name in found if name != "ours"]:
        yield _rate(f"publish {how}", found, peer, names.get(peer, peer), goals.get(peer, ()))


def _drain_rows(workers: int, found: Found) -> Iterator[Row]:
    goals = {"PgQueuer": (Goal("ratio", ">=", 2.5),), "raw SQL": (Goal("ratio", ">=", 0.7),)}
    name = f"drain, {workers} worker{'s' if workers > 1 else ''}"
    for peer in KINDS:
        if peer != "ours" and peer in found:
            yield _rate(name, found, peer, peer, goals.get(peer, ()))
    against = "PgQueuer us" if "PgQueuer us" in found else "raw SQL us"
    if workers == 1:
        yield Row(
            name="Python of one event",
            metric="computed",
            unit="us",
            better="lower",
            ours=found["ours us"].median,
            peer=found[against].median,
            peer_name=against.removesuffix(" us"),
            goals=(Goal("ours", "<=", 20),),
            note="CPU time of the worker process",
        )


def _rate(name: str, found: Found, peer: str, shown: str, goals: tuple[Goal, ...]) -> Row:
    ours, theirs = found["ours"], found[peer]
    return Row(
        name=name,
        metric="median",
        unit="events/s",
        better="higher",
        ours=ours.median,
        peer=theirs.median,
        peer_name=shown,
        goals=goals,
        note=f"{len(ours.samples)} rounds: {ours.low:,.0f} to {ours.high:,.0f}",
    )


def _latency_rows(latencies: dict[str, list[float]]) -> list[Row]:
    rows = []
    for peer in [name for name in latencies if name != "ours"]:
        for percent, bound in ((50, 0.8), (99, 1.0)):
            ours, theirs = (
                float(np.percentile(latencies[name], percent)) for name in ("ours", peer)
            )
            rows.append(
                Row(
                    name=f"publish to handler at {RATE}/s",
                    metric=f"p{percent}",
                    unit="ms",
                    better="lower",
                    ours=ours,
                    peer=theirs,
                    peer_name=peer,
                    goals=(Goal("ratio", "<=", bound),) if peer == "PgQueuer" else (),
                    note=f"{len(latencies['ours'])} events",
                )
            )
    return rows


def _curves(latencies: dict[str, list[float]]) -> str:
    curves = {
        name: tuple((float(p), float(np.percentile(took, p)) * 1000) for p in PERCENTILES)
        for name, took in latencies.items()
    }
    return draw_latency_plot(f"Publish to handler at {RATE} events a second", curves)


def _notes(described: dict[str, Any]) -> Iterator[str]:
    for name in [name for name in KINDS if name not in installed()]:
        yield f"{name} is not installed here, its rows are missing; `make bench` installs it"
    yield "raw SQL: our tables and statements in a loop, without handlers, retries or heartbeats"
    if importlib.util.find_spec("psycopg"):
        form = importlib.import_module("psycopg.pq").__impl__
        yield f"Procrastinate runs on psycopg ({form})"
    if described["noisy"]:
        yield f"noisy: others used {described['foreign_cpus']:g} CPUs before the start"
