"""Writes without the version script, while no other process writes values of their kind.

The script that compares versions costs the server twice as much as the writes. The last writer of
a kind needs no comparison: it knows the stored versions. Every script therefore stores its writer's
token in `writer:<kind>` if another one is there. A writer that finds its own token while it WATCHes
the key writes the next values in a transaction, which the server refuses if the key was touched.

    none ──batch by script; WATCH, GET: our token──▶ held ──EXEC refused, or any doubt──▶ none

The state belongs to a connection, and each connection has its own token. Refused values, values not
written before, and writes that overlap another one go by script.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from qts.cache import commands
from qts.cache.connection import PENDING_MAX, Piece, RedisConnection, RedisProtocol, pack
from qts.cache.store import StoreWrite
from qts.domain import OperationError

_MIN_BATCH = 8  # values of a batch worth acquiring for
_BACKOFF_BATCHES = 15  # batches by script after a refusal: another process writes
_KNOWN_MAX = 20_000
_TRANSACTION_MAX = 100  # values per transaction, which a read may have to wait for
_PIECE_SIZE = 20  # values per piece: sent while the next are encoded

_MULTI, _DISCARD, _EXEC = (pack((word,)) for word in ("MULTI", "DISCARD", "EXEC"))

IndexedWrites = list[tuple[int, StoreWrite]]
TokenOf = Callable[[str], tuple[str, str]]
"""Maps a layout to its token key and the token."""
WriteEntries = Callable[[Iterable[StoreWrite]], Awaitable[list[bool]]]


class ScriptWriter(Protocol):
    def __call__(
        self, entries: Iterable[StoreWrite], writer: TokenOf | None = None
    ) -> Awaitable[list[bool]]: ...


class ExclusiveWriter:
    """Writer over one RedisConnection."""

    def __init__(self, connection: RedisConnection, prefix: str, by_script: ScriptWriter) -> None:
        self._connection = connection
        self._prefix = prefix
        self._by_script = by_script
        self._protocol: RedisProtocol | None = None  # the connection of the token
        self._token = secrets.token_hex(8)
        self._layout = ""  # held layout, if any
        self._known: dict[str, int] = {}  # version written under each key
        self._started = self._in_flight = self._backoff = 0
        self.transactions = 0
        """Transactions committed in place of scripts."""

    def writer(self, layout: str) -> tuple[str, str]:
        """Return the token key of the layout, and the token (a TokenOf)."""
        return f"{self._prefix}writer:{layout}", self._token

    async def write(self, entries: Iterable[StoreWrite]) -> list[bool]:
        self._started += 1
        self._in_flight += 1
        try:
            if self._is_exclusive():
                return await self._write_direct(entries)
            sent: list[StoreWrite] = []
            written = await self._write_by_script(entries, sent)
            await self._acquire(sent, written)
        except BaseException:  # the stored state is unknown now
            self._release()
            raise
        finally:
            self._in_flight -= 1
        return written

    def _is_exclusive(self) -> bool:
        """Whether the server watches our token and no other write is in flight."""
        protocol = self._connection.protocol
        if protocol is not self._protocol:
            # The server may still execute writes of the old connection: with a new token it
            # refuses the transactions among them.
            self._release()
            self._protocol, self._token = protocol, secrets.token_hex(8)
        if protocol is None or not self._layout or self._in_flight > 1:
            return False
        return len(protocol.calls) < PENDING_MAX

    def _release(self) -> None:
        self._layout, self._known = "", {}

    async def _write_by_script(
        self, entries: Iterable[StoreWrite], sent: list[StoreWrite]
    ) -> list[bool]:
        def collect() -> Iterator[StoreWrite]:
            for entry in entries:
                sent.append(entry)
                yield entry

        written = await self._by_script(collect(), self.writer)
        self._record_versions(sent, written)
        return written

    def _record_versions(self, sent: Sequence[StoreWrite], written: Sequence[bool]) -> None:
        for entry, done in zip(sent, written, strict=True):
            if not done:
                self._known.pop(entry.key, None)
            elif entry.layout and entry.layout == self._layout:
                self._known[entry.key] = max(entry.ver, self._known.get(entry.key, 0))

    async def _acquire(self, sent: Sequence[StoreWrite], written: Sequence[bool]) -> None:
        """Watch the token key, and check that it is ours and no other write started."""
        if self._layout or len(sent) < _MIN_BATCH or not (layout := sent[0].layout):
            return
        if self._backoff:
            self._backoff -= 1
            return
        started, protocol = self._started, self._connection.protocol
        key, token = self.writer(layout)
        try:
            replies = await self._connection.call([("UNWATCH",), ("WATCH", key), ("GET", key)])
        except OperationError:
            return  # the values are written anyway
        is_alone = self._in_flight == 1 and self._started == started
        is_ours = replies == ["OK", "OK", token] and token == self._token
        if is_ours and is_alone and protocol is self._connection.protocol:
            self._protocol, self._layout = protocol, layout
            self._record_versions(sent, written)

    async def _write_direct(self, entries: Iterable[StoreWrite]) -> list[bool]:
        """Write in transactions while exclusive; the rest by script."""
        indexed, rest = enumerate(entries), list[tuple[int, StoreWrite]]()
        committed = 0
        while self._is_exclusive() and self._protocol is not None:
            direct: IndexedWrites = []
            replies = await self._protocol.send(self._transaction(indexed, direct, rest))
            if direct and self._is_committed(replies):
                committed += len(direct)
            else:
                rest += direct
            if len(direct) < _TRANSACTION_MAX:
                break
        rest += indexed
        written = [True] * (committed + len(rest))
        if rest:
            results = await self._write_by_script((entry for _, entry in rest), [])
            for (at, _), done in zip(rest, results, strict=True):
                written[at] = done
        return written

    def _transaction(
        self, indexed: Iterator[tuple[int, StoreWrite]], direct: IndexedWrites, rest: IndexedWrites
    ) -> Iterator[Piece]:
        known, layout, head = self._known, self._layout, _MULTI
        piece: list[StoreWrite] = []
        try:
            for at, entry in indexed:
                if entry.layout != layout or not 0 <= known.get(entry.key, -1) <= entry.ver:
                    rest.append((at, entry))
                    continue
                known[entry.key] = entry.ver
                direct.append((at, entry))
                piece.append(entry)
                if len(direct) == _TRANSACTION_MAX:
                    break
                if len(piece) == _PIECE_SIZE:
                    yield head + commands.write_plain(piece), 2 * _PIECE_SIZE + bool(head)
                    head, piece = b"", []
        except Exception:  # of the iterator of entries
            if not head:
                yield _DISCARD, 1
            raise
        if direct:
            key, _ = self.writer(layout)
            end = _EXEC + pack(("WATCH", key)) + pack(("GET", key))
            replies = 2 * len(piece) + bool(head) + 3
            yield head + commands.write_plain(piece) + end, replies

    def _is_committed(self, replies: list[Any]) -> bool:
        """Return False if the server refused the transaction because of another writer."""
        *_, done, watched, found = replies
        for reply in done if isinstance(done, list) else replies:
            if isinstance(reply, Exception):
                raise commands.error(self._connection.where, reply)
        is_held = (watched, found) == ("OK", self._token)
        if done is None or not is_held or len(self._known) > _KNOWN_MAX:
            self._release()
        if done is None:
            self._backoff = _BACKOFF_BATCHES
            return False
        self.transactions += 1
        return True
