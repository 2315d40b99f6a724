"""Kinds that only the feed can tell: without a fresh value there is an error, never a guess."""

from __future__ import annotations

import functools
from typing import TypeVar

from qts.cache.book import Book
from qts.cache.kept import Kept
from qts.cache.near import Slot
from qts.cache.price import Price
from qts.cache.value import Value
from qts.domain import CacheStaleDataError, Failed, PriceDataUnavailableError

V = TypeVar("V", bound=Value)


class Pushed(Kept[V]):
    """What Redis tells is not kept here: the next question deserves the next tick."""

    async def get(self, name: str) -> V:
        if (slot := self.look(name)) is not None:
            self.tally.near += 1
            found: V = self.value_of(slot)
            return found
        levels = self.levels
        began_ns = levels.clock.monotonic_ns()
        try:
            value = await levels.guard.patiently(
                functools.partial(self._read, name), levels.config.read_ms
            )
        except Failed as error:
            self.tally.failed += 1
            raise PriceDataUnavailableError(f"no {self.kind.kind} of {name}: {error}") from error
        finally:
            levels.figures.reads.record(levels.clock.monotonic_ns() - began_ns)
        return self.checked(name, value)

    def checked(self, name: str, value: V | None) -> V:
        """Fresh, or refused; and counted."""
        if value is not None and self.is_fresh(value):
            self.tally.redis += 1
            return value
        last = value or self._last(name)
        if last is None:
            self.tally.absent += 1
            raise PriceDataUnavailableError(f"no {self.kind.kind} of {name} is known")
        self.tally.stale += 1
        age_ms = self.levels.now_ms() - last.received_at
        raise CacheStaleDataError(
            f"the {self.kind.kind} of {name} is {age_ms} ms old; {self.ttl_ms} ms are allowed"
            f" (its venue time is {self.levels.now_ms() - last.happened_at} ms ago;"
            f" {self.levels.config.venue_age_ms} ms are allowed)"
        )

    def is_fresh(self, value: Value) -> bool:
        """Received a moment ago, and not long after the venue said it."""
        venue_age_ms = self.levels.now_ms() - value.happened_at
        return super().is_fresh(value) and abs(venue_age_ms) <= self.levels.config.venue_age_ms

    async def _read(self, name: str) -> V | None:
        (fields,) = await self.levels.store.read([self.key(name)])
        return self.decoded(name, fields)

    def _last(self, name: str) -> Value | None:
        slot: Slot | None = self.levels.near.at(self.key(name))
        return slot.value if slot is not None else None


class Prices(Pushed[Price]):
    pass


class Books(Pushed[Book]):
    DEPTH = 50

    async def _read(self, name: str) -> Book | None:
        found = await self.levels.store.read_book(self.key(name), self.DEPTH)
        if found is None:
            return None
        fields, sides = found
        return self.decoded(name, fields, functools.partial(Book.from_parts, sides=sides))
