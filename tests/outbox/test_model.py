"""States of rows on a real PostgreSQL, compared step by step with a model in Python."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from qts.database import Database, DatabaseConfig
from qts.domain import RefusedError, Secret
from qts.outbox import TRADE_COMMAND, OutboxAdmin, OutboxEvent, PostgresBus, StreamConfig
from qts.outbox.claims import ClaimedEvent, Claims, Horizon
from qts.outbox.handling import HandlerResult
from tests.outbox.kit import accepted

MAX_ATTEMPTS = 3
URL: list[Secret] = []


class Model:
    """Expected state of one event."""

    def __init__(self, event: OutboxEvent, row_id: int) -> None:
        self.event = event
        self.row_id = row_id
        self.status = "PENDING"
        self.attempts = 0
        self.holder: ClaimedEvent | None = None
        self.expired = False
        self.due = True

    @property
    def in_flight(self) -> bool:
        return self.status == "PROCESSING" and not self.expired


class RowStates(RuleBasedStateMachine):
    ordered = False

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.opening = Database.open(URL[0], DatabaseConfig(pool_min=1, pool_max=4))
        self.database = self.do(self.opening.__aenter__())
        self.do(
            self.database.execute(
                "TRUNCATE outbox_event, outbox_event_id, outbox_archive, outbox_paused"
            )
        )
        config = StreamConfig(ordered=self.ordered, max_attempts=MAX_ATTEMPTS, lock_ttl_s=3600)
        self.streams = {TRADE_COMMAND: config}
        self.bus = PostgresBus(self.database, self.streams)
        self.workers = [Claims(TRADE_COMMAND, config, name) for name in ("a", "b")]
        self.horizons = [Horizon(TRADE_COMMAND, self.ordered) for _ in self.workers]
        self.moments = iter(range(0, 10**15, 10**9))  # far enough apart for a horizon to be updated
        self.paused = False
        self.events: dict[UUID, Model] = {}
        self.open: tuple[Any, Model] | None = None  # published, not yet committed
        self.row_ids = iter(range(1_000_000))
        self.stale: list[ClaimedEvent] = []

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        if self.open:
            self.do(self.open[0].__aexit__(None, None, None))
        self.do(self.bus.close())
        self.do(self.opening.__aexit__(None, None, None))
        self.loop.close()

    def on_connection(self, ask: Any) -> Any:
        async def go() -> Any:
            async with self.database.connection() as connection:
                return await ask(connection)

        return self.do(go())

    def unfinished(self, key: str) -> list[Model]:
        alive = [
            one
            for one in self.events.values()
            if one.event.aggregate_id == key and one.status in ("PENDING", "PROCESSING")
        ]
        return sorted(alive, key=lambda one: one.row_id)

    def free(self, one: Model, *, expired: bool) -> bool:
        """Return whether the rules allow a claim now."""
        if self.paused:
            return False
        if expired:
            right = one.status == "PROCESSING" and one.expired and one.attempts < MAX_ATTEMPTS
        else:
            right = one.status == "PENDING" and one.due
        if not right or not self.ordered:
            return right
        line = self.unfinished(one.event.aggregate_id)
        before = line[: line.index(one)]
        if any(other.in_flight for other in line):
            return False
        return not before if expired else all(o.status == "PENDING" and o.due for o in before)

    @initialize(keys=st.lists(st.sampled_from("xy"), min_size=1, max_size=6))
    def begin_with_some(self, keys: list[str]) -> None:
        for key in keys:
            self.publish(key, False)

    @rule(key=st.sampled_from("xy"), twice=st.booleans())
    def publish(self, key: str, twice: bool) -> None:
        event = accepted(key, stream=TRADE_COMMAND)

        async def go() -> list[bool]:
            async with self.database.transaction() as tx:
                return [await self.bus.publish(tx, event) for _ in range(1 + twice)]

        assert self.do(go()) == [True, False][: 1 + twice]
        self.events[event.envelope.event_id] = Model(event, next(self.row_ids))

    @precondition(lambda self: self.open is None)
    @rule(key=st.sampled_from("xy"))
    def publish_and_stay_open(self, key: str) -> None:
        event = accepted(key, stream=TRADE_COMMAND)
        transaction = self.database.transaction()
        tx = self.do(transaction.__aenter__())
        assert self.do(self.bus.publish(tx, event))
        self.open = (transaction, Model(event, next(self.row_ids)))

    @precondition(lambda self: self.open is not None)
    @rule()
    def commit(self) -> None:
        assert self.open is not None
        transaction, one = self.open
        self.do(transaction.__aexit__(None, None, None))
        self.events[one.event.envelope.event_id] = one
        self.open = None

    @rule(worker=st.integers(0, 1))
    def move_the_horizon(self, worker: int) -> None:
        self.on_connection(lambda c: self.horizons[worker].update(c, next(self.moments)))

    @rule(
        worker=st.integers(0, 1),
        at_most=st.integers(1, 4),
        how=st.sampled_from(["claim", "full scan", "stale"]),
    )
    def claim(self, worker: int, at_most: int, how: str) -> None:
        claims, horizon = self.workers[worker], self.horizons[worker]
        free = {i for i, one in self.events.items() if self.free(one, expired=how == "stale")}
        in_flight = {i for i, one in self.events.items() if one.in_flight}
        since: Any = (horizon.due_from, horizon.first_id) if how == "claim" else ()
        closed_to = horizon.closed_to
        ask = claims.claim_stale if how == "stale" else claims.claim
        claimed = self.on_connection(lambda c: ask(c, at_most, 0, *since))
        got = [each.delivery.event_id for each in claimed]
        assert in_flight.isdisjoint(got)
        assert set(got) <= free
        assert len(got) == len(set(got)) <= at_most
        if how != "claim":  # an event before the horizon needs a full scan
            assert len(got) == min(at_most, len(free))
        if self.ordered:
            self.check_groups(got)
        if claimed and how != "stale":
            horizon.advance(claimed[-1].due_at, closed_to)
        self.record(claimed)

    def check_groups(self, got: list[UUID]) -> None:
        """Of each aggregate the first events were claimed, in order, and none was in flight."""
        for key in "xy":
            mine = [self.events[i] for i in got if self.events[i].event.aggregate_id == key]
            assert mine == self.unfinished(key)[: len(mine)]
            assert not mine or not any(one.in_flight for one in self.unfinished(key))

    def record(self, claimed: list[ClaimedEvent]) -> None:
        for each in claimed:
            one = self.events[each.delivery.event_id]
            if one.holder is not None:
                self.stale.append(one.holder)
            one.status, one.holder, one.expired = "PROCESSING", each, False
            one.attempts += 1
            assert each.delivery.attempt == one.attempts

    @rule(paused=st.booleans())
    def pause_or_resume(self, paused: bool) -> None:
        self.do((self.bus.pause if paused else self.bus.resume)(TRADE_COMMAND))
        self.paused = paused

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def use_a_wrong_token(self, data: st.DataObject) -> None:
        """The right id with another token changes nothing."""
        one = data.draw(st.sampled_from(self.held()))
        assert one.holder is not None
        mine = msgspec.structs.replace(one.holder, token="b#0")
        claims = self.workers[1]
        assert self.on_connection(lambda c: claims.complete(c, [mine])) == 0
        assert self.on_connection(lambda c: claims.extend(c, [mine])) == set()
        failed = [(mine, HandlerResult("retry", "CODE", "message"), 1.0)]
        assert self.on_connection(lambda c: claims.fail(c, failed)) == 0
        self.on_connection(lambda c: claims.release(c, [mine]))

    def held(self) -> list[Model]:
        return [one for one in self.events.values() if one.status == "PROCESSING"]

    def dead(self) -> list[UUID]:
        return [i for i, one in self.events.items() if one.status == "DEAD"]

    @precondition(lambda self: self.held())
    @rule(data=st.data(), end=st.sampled_from(["done", "retry", "dead", "release", "extend"]))
    def complete(self, data: st.DataObject, end: str) -> None:
        one = data.draw(st.sampled_from(self.held()))
        assert one.holder is not None
        claims, holder = self.workers[0], one.holder
        if end == "done":
            assert self.on_connection(lambda c: claims.complete(c, [holder])) == 1
            one.status, one.holder = "DONE", None
        elif end == "release":
            self.on_connection(lambda c: claims.release(c, [holder]))
            one.status, one.holder, one.attempts = "PENDING", None, one.attempts - 1
        elif end == "extend":
            lost = one.expired and self.ordered  # for good, even before another claim
            kept = self.on_connection(lambda c: claims.extend(c, [holder]))
            assert kept == (set() if lost else {holder.id})
            one.expired = lost
        else:
            result = HandlerResult("retry" if end == "retry" else "dead", "CODE", "message")
            assert self.on_connection(lambda c: claims.fail(c, [(holder, result, 3600.0)])) == 1
            dead = end == "dead" or one.attempts >= MAX_ATTEMPTS
            one.status, one.holder = "DEAD" if dead else "PENDING", None
            one.due = False

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def complete_too_late(self, data: st.DataObject) -> None:
        old = data.draw(st.sampled_from(self.stale))
        claims = self.workers[0]
        assert self.on_connection(lambda c: claims.complete(c, [old])) == 0
        assert self.on_connection(lambda c: claims.extend(c, [old])) == set()
        failed = [(old, HandlerResult("dead", "CODE", "message"), 1.0)]
        assert self.on_connection(lambda c: claims.fail(c, failed)) == 0

    @precondition(lambda self: self.held())
    @rule(data=st.data(), whole_claim=st.booleans())
    def expire_locks(self, data: st.DataObject, whole_claim: bool) -> None:
        """Expire the lock of one event, or of all that were claimed with it."""
        chosen = data.draw(st.sampled_from(self.held()))
        assert chosen.holder is not None
        for one in self.held():
            with_it = one.holder is not None and one.holder.token == chosen.holder.token
            if one is chosen or (whole_claim and with_it):
                one.expired = True
        gone = [one.event.envelope.event_id for one in self.held() if one.expired]
        self.do(
            self.database.execute(
                "UPDATE outbox_event SET locked_until = clock_timestamp() - interval '1 min' "
                "WHERE event_id = ANY ($1)",
                gone,
            )
        )

    @rule()
    def make_all_due(self) -> None:
        self.do(
            self.database.execute(
                # In the order of the ids: a requeued event keeps its time and has a new id.
                "UPDATE outbox_event e SET next_retry_at = (SELECT max(o.created_at) "
                "FROM outbox_event o WHERE o.id <= e.id) WHERE e.status = 'PENDING'"
            )
        )
        for one in self.events.values():
            one.due = one.due or one.status == "PENDING"

    @rule()
    def mark_exhausted(self) -> None:
        marked = self.on_connection(self.workers[0].mark_exhausted)
        expected = {
            i
            for i, one in self.events.items()
            if one.status == "PROCESSING" and one.expired and one.attempts >= MAX_ATTEMPTS
        }
        assert set(marked) == expected
        for event_id in expected:
            one = self.events[event_id]
            if one.holder is not None:
                self.stale.append(one.holder)
            one.status, one.holder = "DEAD", None

    @precondition(lambda self: self.dead())
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(list(self.events.values())))
        back = self.do(self.bus.requeue(one.event.envelope.event_id))
        assert back == (one.status == "DEAD")
        if back:
            one.status, one.attempts, one.due = "PENDING", 0, True
            one.row_id, one.expired = next(self.row_ids), False

    @precondition(lambda self: self.dead())
    @rule(data=st.data())
    def edit(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(list(self.events.values())))
        admin = OutboxAdmin(self.database, self.streams)
        try:
            self.do(admin.edit(one.event.envelope.event_id, {"order": "edited"}))
        except RefusedError:
            assert one.status != "DEAD"
        else:
            assert one.status == "DEAD"

    @precondition(lambda self: self.dead())
    @rule()
    def purge(self) -> None:
        dead = self.dead()
        assert self.do(OutboxAdmin(self.database).purge_dead(0)) == len(dead)
        for event_id in dead:
            del self.events[event_id]

    @invariant()
    def rows_match_the_model(self) -> None:
        rows = self.do(
            self.database.fetch(
                "SELECT event_id, status, attempt_count, "
                "       CASE status WHEN 'PROCESSING' THEN locked_by END, "
                "       COALESCE(locked_until < clock_timestamp(), false) FROM outbox_event_all"
            )
        )
        real = {row["event_id"]: tuple(row)[1:] for row in rows}
        assert len(real) == len(rows)
        assert real == {
            i: (
                one.status,
                one.attempts,
                one.holder.token if one.holder else None,
                one.status == "PROCESSING" and one.expired,
            )
            for i, one in self.events.items()
        }

    @invariant()
    def one_worker_holds_an_aggregate(self) -> None:
        if self.ordered:
            for key in "xy":
                holders = [one.holder for one in self.unfinished(key) if one.in_flight]
                assert len({holder.token for holder in holders if holder}) <= 1


class OrderedRowStates(RowStates):
    ordered = True


@pytest.fixture
def _url(database_url: Secret) -> Iterator[None]:
    URL.append(database_url)
    yield
    URL.clear()


@pytest.mark.usefixtures("_url")
@pytest.mark.parametrize("machine", [RowStates, OrderedRowStates])
def test_rows_follow_the_model(machine: type[RowStates]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=15,
            stateful_step_count=50,
            phases=(Phase.reuse, Phase.generate),  # shrinking on a server takes minutes
            suppress_health_check=list(HealthCheck),
        ),
    )
