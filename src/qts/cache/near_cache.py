"""The first level: what this process knows itself, with an expiry no wall clock can move."""

from __future__ import annotations

from qts.cache.entry import CacheEntry
from qts.domain import Clock

_EVER_MS = 2**63


class NearCacheSlot:
    """One value. After its end it is a floor for one more TTL: older versions stay out."""

    __slots__ = (
        "dropped",
        "ends_ns",
        "floor_ns",
        "from_ms",
        "renew_ns",
        "until_ms",
        "value",
        "ver",
    )

    def __init__(self, value: CacheEntry | None, ver: int, ends_ns: int, ttl_ns: int) -> None:
        self.value = value
        self.ver = ver
        self.ends_ns = ends_ns
        self.floor_ns = ends_ns + ttl_ns
        self.renew_ns = ends_ns  # from here on it is worth loading anew; set earlier by its kind
        self.from_ms = 0  # the wall clock must be within these two; narrowed by its kind
        self.until_ms = _EVER_MS
        self.dropped = False  # it was changed in the database: only the database tells it now

    def serves(self, now_ns: int, now_ms: int) -> bool:
        """It may be used, by both clocks."""
        return self.ends_ns > now_ns and self.from_ms <= now_ms <= self.until_ms


class NearCache:
    """By key; for one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slots: dict[str, NearCacheSlot] = {}
        self.at = self._slots.get
        """Live or not; changes with every put and drop, so that it tells whether there was one."""

    def __len__(self) -> int:
        return len(self._slots)

    def get(self, key: str, now_ns: int, now_ms: int) -> NearCacheSlot | None:
        """Live by both clocks."""
        slot = self._slots.get(key)
        return slot if slot is not None and slot.serves(now_ns, now_ms) else None

    def put(
        self, key: str, value: CacheEntry | None, ttl_ms: int, life_ms: int | None = None
    ) -> NearCacheSlot | None:
        """Kept for its life (its TTL, if none is given); None when a greater version is known."""
        now_ns = self._clock.monotonic_ns()
        known = self._slots.get(key)
        ver = value.ver if value is not None else 0
        if known is not None and known.floor_ns > now_ns and known.ver > ver:
            if value is not None:
                return None
            ver = known.ver
        life_ms = ttl_ms if life_ms is None else min(life_ms, ttl_ms)
        slot = NearCacheSlot(value, ver, now_ns + life_ms * 1_000_000, ttl_ms * 1_000_000)
        self._slots[key] = slot
        return slot

    def drop(self, key: str, ttl_ms: int) -> None:
        now_ns = self._clock.monotonic_ns()
        known = self._slots.get(key)
        slot = NearCacheSlot(None, known.ver if known else 0, now_ns, ttl_ms * 1_000_000)
        slot.dropped = True
        self._slots[key] = slot

    def sweep(self) -> int:
        """Forget what is neither a value nor a floor any more; how many."""
        now_ns = self._clock.monotonic_ns()
        over = [key for key, slot in self._slots.items() if slot.floor_ns <= now_ns]
        for key in over:
            del self._slots[key]
        return len(over)
