"""Batches as arrays: one row of numbers an event instead of an object.

The lanes write a row when an event is published; only what was published before its handler was
there, is tried again, or is handled in a process of its own, is turned into rows here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from qts.events.event import Event
from qts.events.lanes import RECORD
from qts.events.wire import key_hash

_VALUES = RECORD["values"].shape[0]


class RowCall:
    """Calls a handler with rows, whatever the batch comes as."""

    def __init__(
        self,
        function: Callable[[npt.NDArray[np.void], Sequence[str]], object],
        numbers: dict[str, tuple[int, str | None]],
    ) -> None:
        self._function = function
        self._numbers = numbers  # number and key of each type

    def __call__(self, batch: bytes | Sequence[Event], keys: Sequence[str] | None = None) -> None:
        if isinstance(batch, bytes) and keys is not None:
            self._function(np.frombuffer(batch, dtype=RECORD), keys)
        else:
            self._function(*self._turned([each for each in batch if isinstance(each, Event)]))

    def _turned(self, events: list[Event]) -> tuple[npt.NDArray[np.void], list[str]]:
        rows = np.zeros(len(events), dtype=RECORD)
        keys = []
        for row, event in zip(rows, events, strict=True):
            number, key = self._numbers[event.event_type]
            keys.append(getattr(event.payload, key) if key else "")
            fields = (getattr(event.payload, name) for name in event.payload.__struct_fields__)
            found = [x for x in fields if isinstance(x, int | float) and not isinstance(x, bool)]
            row["key"] = key_hash(number, keys[-1])
            row["timestamp"], row["type"] = event.timestamp, number
            row["count"] = min(len(found), _VALUES)
            row["values"][: row["count"]] = found[:_VALUES]
        return rows, keys
