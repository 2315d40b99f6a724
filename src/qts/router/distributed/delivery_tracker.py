"""Messages that a sink has received of every stream: no duplicates, and a count of missing ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from qts.domain import RefusedError
from qts.router.distributed.edge import TYPES, Batch, streams_of
from qts.router.handlers import Messages

Positions = Mapping[tuple[int, int], int]  # (producer, type) to the last sequence number handled

Rows = npt.NDArray[np.intp]


class _Stream(msgspec.Struct):
    earlier: int  # messages before the first batch that this sink received of it
    due: int  # number of the next message
    position: int  # the last sequence number handled before this sink; -1: none
    base: int | None = None  # number of the first admitted message
    admitted: int = 0
    skipped: int = 0  # handled before, according to the position
    missing: int = 0


class DeliveryTracker:
    """Counts of each message stream, i.e. the messages of one producer and type.

    Batches are admitted once each, in order. `positions` holds the last sequence number that the
    strategies of an earlier sink have handled, from their own record.
    """

    def __init__(self, ordered: Collection[int], positions: Positions | None = None) -> None:
        self._positions: dict[int, int] = {}
        for (producer, kind), sequence in (positions or {}).items():
            if kind not in ordered:
                raise RefusedError(
                    f"a position of type {kind} means nothing: its order is not promised;"
                    f" expected types {', '.join(map(str, sorted(ordered)))}"
                )
            self._positions[producer * TYPES + kind] = sequence
        self._streams: dict[int, _Stream] = {}

    def admit(self, batch: Batch) -> Messages:
        """Return the messages that are new, numbered from 0 in each stream of this sink."""
        messages = batch.messages
        streams = streams_of(messages)
        keep = np.ones(len(messages), np.bool_)
        for key, before in batch.before.items():
            stream = self._stream(key, before)
            rows = np.flatnonzero(streams == key)
            stream.missing += max(0, before - stream.due)
            stream.due = before + len(rows)
            fresh = self._fresh(stream, messages, rows)
            keep[rows] = False
            keep[fresh] = True
            if len(fresh) and stream.base is None:
                stream.base = before + len(rows) - len(fresh)
            messages["stream_number"][fresh] -= np.uint16((stream.base or 0) % 65_536)
            stream.admitted += len(fresh)
            stream.skipped += len(rows) - len(fresh)
        return messages if keep.all() else messages[keep]

    def missing(self, totals: Mapping[int, int], from_start: bool) -> Iterator[tuple[str, int]]:
        """Yield streams that lack messages, with their number.

        `from_start`: this sink began at the first batch, so that a stream without a batch is
        missing instead of finished by an earlier sink.
        """
        for key, total in sorted(totals.items()):
            stream = self._streams.get(key)
            if stream is None:
                count = total if from_start else 0
            else:
                count = stream.missing + max(0, total - stream.due)
            if count:
                yield f"producer {key // TYPES} type {key % TYPES}", count

    def earlier(self, totals: Mapping[int, int], from_start: bool) -> int:
        """Return the number of messages that an earlier sink confirmed."""
        finished = 0 if from_start else sum(totals[key] for key in totals.keys() - self._streams)
        return finished + sum(stream.earlier for stream in self._streams.values())

    @property
    def admitted(self) -> int:
        return sum(stream.admitted for stream in self._streams.values())

    @property
    def skipped(self) -> int:
        """Messages that an earlier sink had handled, according to the positions."""
        return sum(stream.skipped for stream in self._streams.values())

    def _stream(self, key: int, before: int) -> _Stream:
        if key not in self._streams:
            position = self._positions.get(key, -1)
            self._streams[key] = _Stream(earlier=before, due=before, position=position)
        return self._streams[key]

    @staticmethod
    def _fresh(stream: _Stream, messages: Messages, rows: Rows) -> Rows:
        """Return the rows without the handled ones at the beginning of a stream.

        A later row with a low sequence number stays: it is out of order, which the router reports.
        """
        if stream.base is not None or not len(rows):
            return rows
        new = np.flatnonzero(messages["sequence_number"][rows] > stream.position)
        return rows[new[0] :] if len(new) else rows[:0]
