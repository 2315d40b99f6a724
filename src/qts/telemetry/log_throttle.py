"""Lets a warning on a hot path through once in a while and counts the rest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable

MAX_KEYS = 4096  # a key per instrument is fine, a key per order must not fill the memory


class LogThrottle:
    """At most one turn per key and span of time; safe to ask from any thread."""

    def __init__(self, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._monotonic_ns = monotonic_ns
        self._lock = threading.Lock()
        self._keys: dict[Hashable, tuple[int, int]] = {}  # key -> (open again at ns, suppressed)

    def every(self, seconds: float, key: Hashable) -> dict[str, int]:
        """`{"suppressed": n}` when it is this key's turn, else nothing.

        >>> if due := every(10, "ring full"):
        ...     log.warning("ring full", **due)
        """
        now_ns = self._monotonic_ns()
        with self._lock:
            open_at_ns, suppressed = self._keys.get(key, (now_ns, 0))
            if now_ns < open_at_ns:
                self._keys[key] = (open_at_ns, suppressed + 1)
                return {}
            self._keys.pop(key, None)  # so that the oldest turn stands first
            if len(self._keys) >= MAX_KEYS:
                del self._keys[next(iter(self._keys))]
            self._keys[key] = (now_ns + round(seconds * 1e9), 0)
            return {"suppressed": suppressed}

    def take_suppressed(self) -> dict[Hashable, int]:
        """What was suppressed and not yet told, per key; forgets all keys."""
        with self._lock:
            told, self._keys = self._keys, {}
        return {key: suppressed for key, (_, suppressed) in told.items() if suppressed}


_shared = LogThrottle()
log_every = _shared.every
take_suppressed = _shared.take_suppressed
