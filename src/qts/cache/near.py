"""The first level: what this process knows itself, with an expiry no wall clock can move."""

from __future__ import annotations

from qts.cache.value import Value
from qts.domain import Clock


class Slot:
    """One value. After its end it is a floor for one more TTL: older versions stay out."""

    __slots__ = ("ends_ns", "floor_ns", "renew_ns", "value", "ver")

    def __init__(self, value: Value | None, ver: int, ends_ns: int, ttl_ns: int) -> None:
        self.value = value
        self.ver = ver
        self.ends_ns = ends_ns
        self.floor_ns = ends_ns + ttl_ns
        self.renew_ns = ends_ns  # from here on it is worth loading anew; set earlier by its kind


class Near:
    """By key; for one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slots: dict[str, Slot] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def at(self, key: str) -> Slot | None:
        """Live or not; changes with every put and drop, so that it tells whether there was one."""
        return self._slots.get(key)

    def get(self, key: str) -> Slot | None:
        slot = self._slots.get(key)
        if slot is not None and slot.ends_ns > self._clock.monotonic_ns():
            return slot
        return None

    def put(self, key: str, value: Value | None, ttl_ms: int, life_ms: int | None = None) -> bool:
        """Keep it for its life (its TTL, if none is given) unless a greater version is known."""
        now_ns = self._clock.monotonic_ns()
        known = self._slots.get(key)
        ver = value.ver if value is not None else 0
        if known is not None and known.floor_ns > now_ns and known.ver > ver:
            if value is not None:
                return False
            ver = known.ver
        life_ms = ttl_ms if life_ms is None else min(life_ms, ttl_ms)
        self._slots[key] = Slot(value, ver, now_ns + life_ms * 1_000_000, ttl_ms * 1_000_000)
        return True

    def drop(self, key: str, ttl_ms: int) -> None:
        now_ns = self._clock.monotonic_ns()
        known = self._slots.get(key)
        self._slots[key] = Slot(None, known.ver if known else 0, now_ns, ttl_ms * 1_000_000)

    def sweep(self) -> int:
        """Forget what is neither a value nor a floor any more; how many."""
        now_ns = self._clock.monotonic_ns()
        over = [key for key, slot in self._slots.items() if slot.floor_ns <= now_ns]
        for key in over:
            del self._slots[key]
        return len(over)
