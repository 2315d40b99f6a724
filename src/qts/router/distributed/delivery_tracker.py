"""What a sink has taken of every stream: nothing twice, and a count of what is missing."""

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
    earlier: int  # messages before the first batch this sink saw of it
    due: int  # the number of the message that comes next
    position: int  # the last sequence number handled before this sink; -1: none
    base: int | None = None  # the number of the first message passed on
    taken: int = 0
    known: int = 0  # left out: the position says that they were handled
    missing: int = 0


class DeliveryTracker:
    """A stream is what one producer sends of one type. Batches come once each, in order; positions
    tell how far the strategies of an earlier sink had come by their own record."""

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
        """The messages that are new, numbered from 0 in each stream of this sink."""
        messages = batch.messages
        streams = streams_of(messages)
        keep = np.ones(len(messages), np.bool_)
        for key, before in batch.before.items():
            stream = self._stream(key, before)
            mine = np.flatnonzero(streams == key)
            stream.missing += max(0, before - stream.due)
            stream.due = before + len(mine)
            fresh = self._fresh(stream, messages, mine)
            keep[mine] = False
            keep[fresh] = True
            if len(fresh) and stream.base is None:
                stream.base = before + len(mine) - len(fresh)
            messages["stream_number"][fresh] -= np.uint16((stream.base or 0) % 65_536)
            stream.taken += len(fresh)
            stream.known += len(mine) - len(fresh)
        return messages if keep.all() else messages[keep]

    def missing(self, totals: Mapping[int, int], from_start: bool) -> Iterator[tuple[str, int]]:
        """Streams that lack messages. `from_start`: this sink began at the first batch, so a
        stream it never saw is missing, not finished before."""
        for key, total in sorted(totals.items()):
            stream = self._streams.get(key)
            if stream is None:
                lacks = total if from_start else 0
            else:
                lacks = stream.missing + max(0, total - stream.due)
            if lacks:
                yield f"producer {key // TYPES} type {key % TYPES}", lacks

    def earlier(self, totals: Mapping[int, int], from_start: bool) -> int:
        """Messages that an earlier sink confirmed."""
        unseen = 0 if from_start else sum(totals[key] for key in totals.keys() - self._streams)
        return unseen + sum(stream.earlier for stream in self._streams.values())

    @property
    def taken(self) -> int:
        return sum(stream.taken for stream in self._streams.values())

    @property
    def known(self) -> int:
        """Messages left out, because positions said that they were handled."""
        return sum(stream.known for stream in self._streams.values())

    def _stream(self, key: int, before: int) -> _Stream:
        if key not in self._streams:
            position = self._positions.get(key, -1)
            self._streams[key] = _Stream(earlier=before, due=before, position=position)
        return self._streams[key]

    @staticmethod
    def _fresh(stream: _Stream, messages: Messages, mine: Rows) -> Rows:
        """All but what comes first and was handled; a message out of order is for strategies to
        complain about, not to be taken for an old one."""
        if stream.base is not None or not len(mine):
            return mine
        new = np.flatnonzero(messages["sequence_number"][mine] > stream.position)
        return mine[new[0] :] if len(new) else mine[:0]
