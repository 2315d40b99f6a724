"""Kinds the database knows: what is missing is loaded, once for all who miss it."""

from __future__ import annotations

import functools
from typing import TypeVar

import msgspec

from qts import telemetry
from qts.cache.kept import Kept
from qts.cache.near import Slot
from qts.cache.order import OrderStatus
from qts.cache.position import Position
from qts.cache.risk import Risk
from qts.cache.store import Fields
from qts.cache.strategy import StrategyParams
from qts.cache.value import Value
from qts.domain import Failed, QtsError

V = TypeVar("V", bound=Value)

_AHEAD_FROM_MS = 5_000  # kinds that live this long are loaded anew before they end
_AHEAD = 0.8
_NONE_MS = 1_000  # "there is none" is believed so long

log = telemetry.logger("cache")


class Backed(Kept[V]):
    """None is an answer: the database knows of no such thing."""

    async def get(self, name: str) -> V | None:
        if (slot := self.look(name)) is not None:
            self.tally.near += 1
            found: V | None = self.value_of(slot)
            return found
        levels, key = self.levels, self.key(name)
        before, began_ns = levels.near.at(key), levels.clock.monotonic_ns()
        try:
            read = functools.partial(levels.store.read, [key])
            (fields,) = await levels.guard.patiently(read, levels.config.read_ms)
        except Failed:
            fields = None
        finally:
            levels.figures.reads.record(levels.clock.monotonic_ns() - began_ns)
        return self.accepted(name, fields, before) or await self.load(name)

    def accepted(self, name: str, fields: Fields | None, before: Slot | None) -> V | None:
        """What Redis told, if it may be used; kept here unless there was news meanwhile."""
        value = self.decoded(name, fields)
        key = self.key(name)
        now = self.levels.near.at(key)
        if value is None or (now is not None and now.ver > value.ver) or not self.is_fresh(value):
            return None
        self.tally.redis += 1
        if now is before:
            life_ms = self.ttl_ms - max(0, self.levels.now_ms() - value.received_at)
            self.levels.near.put(key, value, self.ttl_ms, life_ms)
            self._plan_renewal(key)
        return value

    async def load(self, name: str) -> V | None:
        """From the database, in one flight with everybody who needs the same."""
        try:
            value = await self.levels.flights.join(
                self.key(name), functools.partial(self._load, name)
            )
        except QtsError:
            self.tally.failed += 1
            raise
        self.tally.database += 1
        return value

    def forget(self, name: str) -> None:
        """At once and only here: `changed` does the rest."""
        key = self.key(name)
        self.levels.near.drop(key, self.ttl_ms)
        self.levels.behind.drop(key)
        self.levels.flights.forget(key)

    async def changed(self, name: str) -> None:
        """The database has a new value: forget the old one on every level, load the new one."""
        self.forget(name)
        levels = self.levels
        delete = functools.partial(levels.store.delete, [self.key(name)])
        try:
            await levels.guard.patiently(delete, levels.config.write_ms)
        except Failed as error:
            log.debug("Redis was not told of a change", kind=self.kind.kind, error=str(error))
        try:
            await self.load(name)
        except QtsError as error:
            log.warning("a changed value was not loaded", kind=self.kind.kind, error=str(error))

    def look(self, name: str) -> Slot | None:
        slot = super().look(name)
        if slot is not None and slot.renew_ns <= self.levels.clock.monotonic_ns():
            slot.renew_ns = slot.ends_ns
            self.levels.flights.begin(self.key(name), functools.partial(self._load, name))
        return slot

    async def _load(self, name: str) -> V | None:
        levels, key = self.levels, self.key(name)
        before, asked_ms = levels.near.at(key), levels.now_ms()
        found = await levels.load_truth(self.kind.kind, name)
        value = self._as_asked(name, found, asked_ms)
        if levels.near.at(key) is not before:  # news came meanwhile: that is what counts
            slot = self.look(name)
            return self.value_of(slot) if slot is not None else value
        if value is None:
            levels.near.put(key, None, self.ttl_ms, _NONE_MS)
        elif levels.near.put(key, value, self.ttl_ms):
            self._plan_renewal(key)
            levels.behind.put(key, value, self._redis_ttl_ms())
        return value

    def _as_asked(self, name: str, found: Value | None, asked_ms: int) -> V | None:
        if found is None:
            return None
        if not isinstance(found, self.kind) or found.name != name:
            raise Failed(
                f"asked for the {self.kind.kind} of {name}, the database told {found.name}"
            )
        return msgspec.structs.replace(found, received_at=asked_ms)

    def _plan_renewal(self, key: str) -> None:
        slot = self.levels.near.at(key)
        if slot is not None and self.ttl_ms >= _AHEAD_FROM_MS:
            left_ns = slot.ends_ns - self.levels.clock.monotonic_ns()
            slot.renew_ns = slot.ends_ns - round(left_ns * (1 - _AHEAD))


class Positions(Backed[Position]):
    pass


class Risks(Backed[Risk]):
    pass


class Orders(Backed[OrderStatus]):
    pass


class Strategies(Backed[StrategyParams]):
    pass
