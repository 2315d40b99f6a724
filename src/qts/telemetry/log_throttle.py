"""Rate limit for log lines on hot paths; counts what it suppresses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable

MAX_KEYS = 4096  # bounds memory if a caller uses a key per order


class LogThrottle:
    """At most one log line per key and period; thread-safe."""

    def __init__(self, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._monotonic_ns = monotonic_ns
        self._lock = threading.Lock()
        self._keys: dict[Hashable, tuple[int, int]] = {}  # key -> (next line at ns, suppressed)

    def every(self, seconds: float, key: Hashable) -> dict[str, int]:
        """Return `{"suppressed": n}` when this key may log, else an empty dict.

        >>> if due := every(10, "ring full"):
        ...     log.warning("ring full", **due)
        """
        now_ns = self._monotonic_ns()
        with self._lock:
            next_at_ns, suppressed = self._keys.get(key, (now_ns, 0))
            if now_ns < next_at_ns:
                self._keys[key] = (next_at_ns, suppressed + 1)
                return {}
            self._keys.pop(key, None)  # keeps the dict ordered by last line, oldest first
            if len(self._keys) >= MAX_KEYS:
                del self._keys[next(iter(self._keys))]
            self._keys[key] = (now_ns + round(seconds * 1e9), 0)
            return {"suppressed": suppressed}

    def take_suppressed(self) -> dict[Hashable, int]:
        """Return the suppressed lines per key that no line has reported, and clear all keys."""
        with self._lock:
            keys, self._keys = self._keys, {}
        return {key: suppressed for key, (_, suppressed) in keys.items() if suppressed}


_shared = LogThrottle()
log_every = _shared.every
take_suppressed = _shared.take_suppressed
