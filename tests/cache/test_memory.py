"""The store within the process: each call at one moment, however fast the clock goes."""

from __future__ import annotations

from qts.cache.store import BookSides, MemoryStore, StoreWrite
from qts.domain import ManualClock


class Hurrying(ManualClock):
    """A millisecond later at every look."""

    def monotonic_ns(self) -> int:
        self._monotonic_ns += 1_000_000
        return self._monotonic_ns


async def test_a_book_is_there_as_a_whole_or_not_at_all() -> None:
    store, sides = MemoryStore(Hurrying()), BookSides([(100, "1")], [(101, "1")])
    for ttl_ms in range(1, 20):
        await store.write([StoreWrite.of("{b}", 1, ttl_ms, {"ver": "1"}, sides)])
        while found := await store.read_book("{b}", 5):
            assert found[1] == sides
        assert await store.keys("{b}") == []
