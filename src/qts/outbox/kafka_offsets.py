"""What became of the events of one Kafka partition, in the few bytes that Kafka keeps for us.

    offset      0   1   2   3   4   5   6   7
                done    ▲   done    │       ▲
                        │ floor: first not ended      next: not taken yet
                        committed, with the note {"ended": [1], "tries": {"0": 2, "2": 1}}

Kafka keeps one number per partition: all before it is done. Events end out of order here, as one
aggregate waits for its next attempt while others go on. So what ended above the floor, and how
often each of the others was begun, is written into the metadata of the commit. Whoever has the
partition next continues from there: what ended is not repeated, and an event that kills its
consumer has its attempts counted.
"""

from __future__ import annotations

import msgspec

from qts import telemetry

WINDOW = 256  # events between floor and next: their note stays far below Kafka's 4,096 bytes

log = telemetry.logger("outbox")


class _Note(msgspec.Struct):
    """Offsets as distances from the floor."""

    ended: list[int] = []
    tries: dict[int, int] = {}


_decoder = msgspec.json.Decoder(_Note)


class OffsetTracker:
    """Begins where a commit left off; None: at the first event that comes."""

    def __init__(self, floor: int | None = None, note: str = "") -> None:
        self._next = floor
        self._open: dict[int, None] = {}  # taken and not ended, in order
        kept = _read(note)
        start = floor or 0
        self._ended = {start + distance for distance in kept.ended}
        self._tries = {start + distance: tries for distance, tries in kept.tries.items()}

    @property
    def floor(self) -> int:
        """Everything before it has ended."""
        return next(iter(self._open), self._next or 0)

    @property
    def in_hand(self) -> int:
        return len(self._open)

    @property
    def is_full(self) -> bool:
        return len(self._open) + len(self._ended) >= WINDOW

    def take(self, offset: int) -> bool:
        """A new event; False when it ended before, elsewhere."""
        self._next = offset + 1
        if offset in self._ended:
            self._forget()
            return False
        self._open[offset] = None
        return True

    def tries(self, offset: int) -> int:
        return self._tries.get(offset, 0)

    def begin(self, offset: int) -> int:
        """The number of the attempt that begins."""
        self._tries[offset] = tries = self._tries.get(offset, 0) + 1
        return tries

    def undo(self, offset: int) -> None:
        """It was not tried after all."""
        self._tries[offset] -= 1

    def end(self, offset: int) -> None:
        del self._open[offset]
        self._ended.add(offset)
        self._tries.pop(offset, None)
        self._forget()

    def note(self) -> str:
        floor = self.floor
        note = _Note(
            sorted(offset - floor for offset in self._ended),
            {offset - floor: tries for offset, tries in self._tries.items() if tries},
        )
        return msgspec.json.encode(note).decode()

    def _forget(self) -> None:
        floor = self.floor
        self._ended = {offset for offset in self._ended if offset >= floor}
        self._tries = {offset: n for offset, n in self._tries.items() if offset >= floor}


def _read(note: str) -> _Note:
    try:
        return _decoder.decode(note) if note else _Note()
    except msgspec.MsgspecError:
        log.warning("the group has offsets that others committed", metadata=note[:100])
        return _Note()
