"""The access token: one per key, shared on disk by all processes, issued at most once a minute.

    memory ── ended? ──▶ disk ── ended? ──▶ issue, under the file's lock ──▶ disk, memory

KIS sends its customer a message for every issue and refuses a second one within a minute. So a
token is kept to its end and renewed ahead of it; a renewal that has begun is finished, whoever
gives up waiting for it; and where none is to be had, the old token serves to its end. The file is
ours alone (0600); its name is a digest of the key.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path

import msgspec

from qts import telemetry
from qts.domain import Clock, OperationError, Secret

log = telemetry.logger("venues")

RENEW_AHEAD_S = 600.0
ISSUE_EVERY_S = 60.0


class Token(msgspec.Struct, frozen=True):
    access_token: str
    issued_at: datetime
    ends_at: datetime

    def __repr__(self) -> str:
        return f"Token(***, ends_at={self.ends_at:%Y-%m-%d %H:%M:%S})"


Issue = Callable[[], Awaitable[tuple[str, float]]]  # the token and the seconds it lives


def token_file(folder: Path, key: Secret) -> Path:
    return folder / f"kis-{hashlib.sha256(key.reveal().encode()).hexdigest()[:16]}.token"


class TokenStore:
    """Hands out the token that is good now."""

    def __init__(self, path: Path, clock: Clock, issue: Issue) -> None:
        self._path = path
        self._clock = clock
        self._issue = issue
        self._token: Token | None = None
        self._unwritten: Token | None = None  # the disk did not take it
        self._in_vain_ns: int | None = None  # when it could not be renewed ahead of its end
        self._one_at_a_time = asyncio.Lock()
        self._renewals: set[asyncio.Task[str]] = set()

    async def close(self) -> None:
        """Wait for the renewal that is under way: its token would be lost."""
        if self._renewals:
            await asyncio.wait(self._renewals)

    async def get(self) -> str:
        if self._token is not None and self._serves(self._token):
            return self._token.access_token
        return await self._renew(None)

    async def replace(self, bad: str) -> str:
        """The venue no longer takes this token: another one, issued once however many ask."""
        return await self._renew(bad)

    async def _renew(self, bad: str | None) -> str:
        renewal = asyncio.create_task(self._renewed(bad))
        self._renewals.add(renewal)
        renewal.add_done_callback(self._ended)
        return await asyncio.shield(renewal)

    def _ended(self, renewal: asyncio.Task[str]) -> None:
        self._renewals.discard(renewal)
        if not renewal.cancelled():
            renewal.exception()  # seen, even where nobody waits any more

    async def _renewed(self, bad: str | None) -> str:
        async with self._one_at_a_time:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
                known = self._last()
                if known is None or known.access_token == bad:
                    known = await self._issued(known)
                elif not self._good(known):
                    known = await self._issued_ahead(known)
                self._token = known
                return known.access_token
            finally:
                os.close(lock)

    async def _issued_ahead(self, last: Token) -> Token:
        try:
            return await self._issued(last)
        except OperationError as error:
            if self._left_s(last) <= 0:
                raise
            log.warning("the token is not renewed yet; the old one serves on", reason=str(error))
            self._in_vain_ns = self._clock.monotonic_ns()
            return last

    async def _issued(self, last: Token | None) -> Token:
        now = self._clock.now()
        since = (now - last.issued_at).total_seconds() if last else ISSUE_EVERY_S
        if 0 <= since < ISSUE_EVERY_S:
            raise OperationError(
                f"KIS issues a token once a minute, and the last one is {since:.0f} s old; "
                f"ask again in {ISSUE_EVERY_S - since:.0f} s"
            )
        text, lives_s = await self._issue()
        ends_at = datetime.fromtimestamp(now.timestamp() + lives_s, now.tzinfo)
        token = Token(text, now, ends_at)
        self._keep(token)
        self._in_vain_ns = None
        return token

    def _serves(self, token: Token) -> bool:
        """Good, or the best to be had: renewing is tried once a minute."""
        if self._in_vain_ns is None:
            return self._good(token)
        rest_s = ISSUE_EVERY_S - (self._clock.monotonic_ns() - self._in_vain_ns) / 1e9
        return rest_s > 0 and self._left_s(token) > 0

    def _good(self, token: Token) -> bool:
        return self._left_s(token) > RENEW_AHEAD_S

    def _left_s(self, token: Token) -> float:
        return (token.ends_at - self._clock.now()).total_seconds()

    def _last(self) -> Token | None:
        read, unwritten = self._read(), self._unwritten
        if unwritten is None or (read is not None and read.issued_at > unwritten.issued_at):
            return read
        return unwritten

    def _read(self) -> Token | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Token)
        except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def _keep(self, token: Token) -> None:
        try:
            self._write(token)
        except OSError as error:
            log.error("the token could not be kept on disk", reason=error.strerror)
            self._unwritten = token
        else:
            self._unwritten = None

    def _write(self, token: Token) -> None:
        draft = self._path.with_suffix(".draft")
        draft.unlink(missing_ok=True)
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(file, msgspec.json.encode(token))
            os.fsync(file)
        finally:
            os.close(file)
        draft.rename(self._path)
