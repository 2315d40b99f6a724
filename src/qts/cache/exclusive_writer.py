"""Values written without a script, while nobody else writes values of their kind.

The script that compares versions costs the server twice what the writes themselves do. A writer
that was the last one to write anything of a kind needs no comparison: what lies there is its own,
and it knows what that is. So every script leaves the token of its writer in `writer:<kind>`, where
it finds another one, and a writer that has made sure its own is there, while it watches the key,
writes the next values in a transaction. The server refuses that when the key was touched since.

    none ──a batch by script; WATCH, GET: our token──▶ held ──EXEC refused, or any doubt──▶ none

A connection holds it, and each has a token of its own. What was refused is written by script, as is
what was not written before, and whatever is asked for while another write is under way.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from qts.cache import commands
from qts.cache.address import pack
from qts.cache.connection import WAITING_MAX, Piece, RedisConnection, RedisProtocol
from qts.cache.store import StoreWrite
from qts.domain import OperationError

_WORTH = 8  # values in one batch
_WAIT = 15  # batches by script after a refusal: somebody else writes as well
_KNOWN_MAX = 20_000
_AT_ONCE = 100  # values in one transaction: a read waits for no more than these
_PIECE = 20  # of them leave together, while the next ones are made

_MULTI, _DISCARD, _EXEC = (pack((word,)) for word in ("MULTI", "DISCARD", "EXEC"))

Placed = list[tuple[int, StoreWrite]]
Writer = Callable[[str], tuple[str, str]]
"""By layout: the key where its script leaves a token, and the token."""
Writing = Callable[[Iterable[StoreWrite]], Awaitable[list[bool]]]


class ScriptWriter(Protocol):
    def __call__(
        self, entries: Iterable[StoreWrite], writer: Writer | None = None
    ) -> Awaitable[list[bool]]: ...


class ExclusiveWriter:
    """Of the writes of one Wire."""

    def __init__(self, wire: RedisConnection, prefix: str, by_script: ScriptWriter) -> None:
        self._wire = wire
        self._prefix = prefix
        self._by_script = by_script
        self._line: RedisProtocol | None = None  # the connection that the token belongs to
        self._token = secrets.token_hex(8)
        self._layout = ""  # of which it is held, if it is
        self._known: dict[str, int] = {}  # the version under each key, as it was written here
        self._begun = self._under_way = self._wait = 0
        self.served = 0
        """Transactions that took the place of scripts."""

    def writer(self, layout: str) -> tuple[str, str]:
        """A Writer."""
        return f"{self._prefix}writer:{layout}", self._token

    async def write(self, entries: Iterable[StoreWrite]) -> list[bool]:
        self._begun += 1
        self._under_way += 1
        try:
            if self._is_sure():
                return await self._write_known(entries)
            seen: list[StoreWrite] = []
            written = await self._ask(entries, seen)
            await self._take(seen, written)
        except BaseException:  # what is there now nobody knows
            self._let_go()
            raise
        finally:
            self._under_way -= 1
        return written

    def _is_sure(self) -> bool:
        """The server watches for us, and no write is under way whose end we do not know."""
        line = self._wire.line
        if line is not self._line:
            # The server may still do what it was told over the old one: with the token of the new
            # one it will refuse a transaction.
            self._let_go()
            self._line, self._token = line, secrets.token_hex(8)
        if line is None or not self._layout or self._under_way > 1:
            return False
        return len(line.calls) < WAITING_MAX

    def _let_go(self) -> None:
        self._layout, self._known = "", {}

    async def _ask(self, entries: Iterable[StoreWrite], seen: list[StoreWrite]) -> list[bool]:
        def noting() -> Iterator[StoreWrite]:
            for entry in entries:
                seen.append(entry)
                yield entry

        written = await self._by_script(noting(), self.writer)
        self._note(seen, written)
        return written

    def _note(self, seen: Sequence[StoreWrite], written: Sequence[bool]) -> None:
        for entry, done in zip(seen, written, strict=True):
            if not done:
                self._known.pop(entry.key, None)
            elif entry.layout and entry.layout == self._layout:
                self._known[entry.key] = max(entry.ver, self._known.get(entry.key, 0))

    async def _take(self, seen: Sequence[StoreWrite], written: Sequence[bool]) -> None:
        """Make sure that our token is there, watched from now on, and that no other write began."""
        if self._layout or len(seen) < _WORTH or not (layout := seen[0].layout):
            return
        if self._wait:
            self._wait -= 1
            return
        begun, line, (key, token) = self._begun, self._wire.line, self.writer(layout)
        try:
            told = await self._wire.call([("UNWATCH",), ("WATCH", key), ("GET", key)])
        except OperationError:
            return  # the values are written all the same
        alone = self._under_way == 1 and self._begun == begun
        sure = told == ["OK", "OK", token] and token == self._token
        if sure and alone and line is self._wire.line:
            self._line, self._layout = line, layout
            self._note(seen, written)

    async def _write_known(self, entries: Iterable[StoreWrite]) -> list[bool]:
        """In transactions, one after the other, as long as that is sure; the rest by script."""
        placed, rest = enumerate(entries), list[tuple[int, StoreWrite]]()
        written = 0
        while self._is_sure() and self._line is not None:
            mine: Placed = []
            replies = await self._line.send(self._transaction(placed, mine, rest))
            if mine and self._is_done(replies):
                written += len(mine)
            else:
                rest += mine
            if len(mine) < _AT_ONCE:
                break
        rest += placed
        told = [True] * (written + len(rest))
        if rest:
            asked = await self._ask((entry for _, entry in rest), [])
            for (at, _), done in zip(rest, asked, strict=True):
                told[at] = done
        return told

    def _transaction(
        self, placed: Iterator[tuple[int, StoreWrite]], mine: Placed, rest: Placed
    ) -> Iterator[Piece]:
        known, layout, head = self._known, self._layout, _MULTI
        piece: list[StoreWrite] = []
        try:
            for at, entry in placed:
                if entry.layout != layout or not 0 <= known.get(entry.key, -1) <= entry.ver:
                    rest.append((at, entry))
                    continue
                known[entry.key] = entry.ver
                mine.append((at, entry))
                piece.append(entry)
                if len(mine) == _AT_ONCE:
                    break
                if len(piece) == _PIECE:
                    yield head + commands.write_plain(piece), 2 * _PIECE + bool(head)
                    head, piece = b"", []
        except Exception:  # of who makes the entries
            if not head:
                yield _DISCARD, 1
            raise
        if mine:
            key, _ = self.writer(layout)
            end = _EXEC + pack(("WATCH", key)) + pack(("GET", key))
            replies = 2 * len(piece) + bool(head) + 3
            yield head + commands.write_plain(piece) + end, replies

    def _is_done(self, replies: list[Any]) -> bool:
        """Whether it was; False: nothing of it was, because somebody else has written."""
        *_, done, watched, found = replies
        for reply in done if isinstance(done, list) else replies:
            if isinstance(reply, Exception):
                raise commands.error(self._wire.where, reply)
        again = (watched, found) == ("OK", self._token)
        if done is None or not again or len(self._known) > _KNOWN_MAX:
            self._let_go()
        if done is None:
            self._wait = _WAIT
            return False
        self.served += 1
        return True
