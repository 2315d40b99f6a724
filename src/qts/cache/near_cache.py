"""Near cache: values in this process, which expire by the monotonic clock."""

from __future__ import annotations

from qts.cache.entry import CacheEntry
from qts.domain import Clock

_NEVER_MS = 2**63


class NearCacheSlot:
    """Value of a key. For one TTL after expiry its version still keeps older ones out."""

    __slots__ = (
        "expires_ns",
        "invalidated",
        "refresh_ns",
        "valid_from_ms",
        "valid_until_ms",
        "value",
        "ver",
        "version_until_ns",
    )

    def __init__(self, value: CacheEntry | None, ver: int, expires_ns: int, ttl_ns: int) -> None:
        self.value = value
        self.ver = ver
        self.expires_ns = expires_ns
        self.version_until_ns = expires_ns + ttl_ns
        self.refresh_ns = expires_ns  # when to reload; the region may set it earlier
        self.valid_from_ms = 0  # wall-clock range of validity; narrowed by the region
        self.valid_until_ms = _NEVER_MS
        self.invalidated = False  # changed in the database: Redis may hold the old value

    def is_valid(self, now_ns: int, now_ms: int) -> bool:
        """Whether both clocks allow the value to be used."""
        return self.expires_ns > now_ns and self.valid_from_ms <= now_ms <= self.valid_until_ms


class NearCache:
    """Slots by key, for one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slots: dict[str, NearCacheSlot] = {}
        self.find = self._slots.get
        """Return the slot, valid or not; every put and drop replaces it."""

    def __len__(self) -> int:
        return len(self._slots)

    def get(self, key: str, now_ns: int, now_ms: int) -> NearCacheSlot | None:
        """Return the slot if it is valid by both clocks."""
        slot = self._slots.get(key)
        return slot if slot is not None and slot.is_valid(now_ns, now_ms) else None

    def put(
        self, key: str, value: CacheEntry | None, ttl_ms: int, remaining_ms: int | None = None
    ) -> NearCacheSlot | None:
        """Store for `remaining_ms`, at most its TTL; return None if a greater version is known."""
        now_ns = self._clock.monotonic_ns()
        known = self._slots.get(key)
        ver = value.ver if value is not None else 0
        if known is not None and known.version_until_ns > now_ns and known.ver > ver:
            if value is not None:
                return None
            ver = known.ver
        remaining_ms = ttl_ms if remaining_ms is None else min(remaining_ms, ttl_ms)
        slot = NearCacheSlot(value, ver, now_ns + remaining_ms * 1_000_000, ttl_ms * 1_000_000)
        self._slots[key] = slot
        return slot

    def remove(self, key: str) -> None:
        """Delete the slot with its version."""
        self._slots.pop(key, None)

    def drop(self, key: str, ttl_ms: int) -> None:
        now_ns = self._clock.monotonic_ns()
        known = self._slots.get(key)
        slot = NearCacheSlot(None, known.ver if known else 0, now_ns, ttl_ms * 1_000_000)
        slot.invalidated = True
        self._slots[key] = slot

    def sweep(self) -> int:
        """Delete slots that hold neither a value nor a version; return how many."""
        now_ns = self._clock.monotonic_ns()
        expired = [key for key, slot in self._slots.items() if slot.version_until_ns <= now_ns]
        for key in expired:
            del self._slots[key]
        return len(expired)
