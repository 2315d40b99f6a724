"""Progress of one Kafka partition, stored in the metadata of the committed offset.

    offset      0   1   2   3   4   5   6   7
                done    ▲   done    │       ▲
                        │ first open                  next: not received yet
                        committed, with the metadata {"ended": [1], "tries": {"0": 2, "2": 1}}

Kafka stores one offset per partition: all events before it are done. Events finish out of order,
because one aggregate waits for a retry while others continue. So the metadata of the commit holds
which events after the first open one have finished, and how many attempts of the others started.
The next consumer of the partition continues from there: finished events are not repeated, and the
attempts of an event that crashes its consumer are counted.
"""

from __future__ import annotations

import msgspec

from qts import telemetry

WINDOW = 256  # events from first open to next: their metadata stays far below Kafka's 4,096 bytes

log = telemetry.logger("outbox")


class _Metadata(msgspec.Struct):
    """Offsets relative to the first open one."""

    ended: list[int] = []
    tries: dict[int, int] = {}


_decoder = msgspec.json.Decoder(_Metadata)


class OffsetTracker:
    """Finished and open offsets, continued from a commit; None: from the first event received."""

    def __init__(self, first_open: int | None = None, metadata: str = "") -> None:
        self._next = first_open
        self._open: dict[int, None] = {}  # received and not finished, in order
        stored = _decode(metadata)
        start = first_open or 0
        self._ended = {start + distance for distance in stored.ended}
        self._attempts = {start + distance: tries for distance, tries in stored.tries.items()}

    @property
    def first_open(self) -> int:
        """First offset that is not finished."""
        return next(iter(self._open), self._next or 0)

    @property
    def in_flight(self) -> int:
        return len(self._open)

    @property
    def is_full(self) -> bool:
        return len(self._open) + len(self._ended) >= WINDOW

    def add(self, offset: int) -> bool:
        """Add a received event; return False if another consumer has finished it."""
        self._next = offset + 1
        if offset in self._ended:
            self._prune()
            return False
        self._open[offset] = None
        return True

    def attempts(self, offset: int) -> int:
        return self._attempts.get(offset, 0)

    def start_attempt(self, offset: int) -> int:
        """Return the number of the attempt that starts."""
        self._attempts[offset] = tries = self._attempts.get(offset, 0) + 1
        return tries

    def undo_attempt(self, offset: int) -> None:
        """Uncount an attempt that did not start."""
        self._attempts[offset] -= 1

    def finish(self, offset: int) -> None:
        del self._open[offset]
        self._ended.add(offset)
        self._attempts.pop(offset, None)
        self._prune()

    def metadata(self) -> str:
        first_open = self.first_open
        metadata = _Metadata(
            sorted(offset - first_open for offset in self._ended),
            {offset - first_open: tries for offset, tries in self._attempts.items() if tries},
        )
        return msgspec.json.encode(metadata).decode()

    def _prune(self) -> None:
        first_open = self.first_open
        self._ended = {offset for offset in self._ended if offset >= first_open}
        self._attempts = {offset: n for offset, n in self._attempts.items() if offset >= first_open}


def _decode(metadata: str) -> _Metadata:
    try:
        return _decoder.decode(metadata) if metadata else _Metadata()
    except msgspec.MsgspecError:
        log.warning("foreign commit metadata ignored", metadata=metadata[:100])
        return _Metadata()
