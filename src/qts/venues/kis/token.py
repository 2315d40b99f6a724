"""Access token of KIS: one per key, shared on disk by all processes, issued once a minute at most.

    memory ── expired? ──▶ disk ── expired? ──▶ issue, under the file lock ──▶ disk, memory

KIS messages its customer at every issue and rejects a second one within a minute. So a token is
used until it expires and renewed shortly before; a renewal that has begun is finished even when
its caller is cancelled; and if renewal fails, the old token is used until it expires. The file is
private (0600); its name is a digest of the key.
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
ISSUE_INTERVAL_S = 60.0


class Token(msgspec.Struct, frozen=True):
    access_token: str
    issued_at: datetime
    ends_at: datetime

    def __repr__(self) -> str:
        return f"Token(***, ends_at={self.ends_at:%Y-%m-%d %H:%M:%S})"


Issue = Callable[[], Awaitable[tuple[str, float]]]  # the token and its TTL in seconds


def token_file(folder: Path, key: Secret) -> Path:
    return folder / f"kis-{hashlib.sha256(key.reveal().encode()).hexdigest()[:16]}.token"


class TokenStore:
    """Current token of a key: in memory, on disk, or newly issued."""

    def __init__(self, path: Path, clock: Clock, issue: Issue) -> None:
        self._path = path
        self._clock = clock
        self._issue = issue
        self._token: Token | None = None
        self._unsaved: Token | None = None  # could not be written to disk
        self._renewal_failed_ns: int | None = None
        self._renewal_lock = asyncio.Lock()
        self._renewals: set[asyncio.Task[str]] = set()

    async def close(self) -> None:
        """Wait for the renewal in flight: its token would be lost."""
        if self._renewals:
            await asyncio.wait(self._renewals)

    async def get(self) -> str:
        if self._token is not None and self._usable(self._token):
            return self._token.access_token
        return await self._start_renewal(None)

    async def replace(self, rejected: str) -> str:
        """Return a token other than the one KIS rejected; concurrent callers share one issue."""
        return await self._start_renewal(rejected)

    async def _start_renewal(self, rejected: str | None) -> str:
        renewal = asyncio.create_task(self._renew(rejected))
        self._renewals.add(renewal)
        renewal.add_done_callback(self._renewal_done)
        return await asyncio.shield(renewal)

    def _renewal_done(self, renewal: asyncio.Task[str]) -> None:
        self._renewals.discard(renewal)
        if not renewal.cancelled():
            renewal.exception()  # retrieved, even if no caller is waiting

    async def _renew(self, rejected: str | None) -> str:
        async with self._renewal_lock:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
                token = self._latest()
                if token is None or token.access_token == rejected:
                    token = await self._issue_token(token)
                elif not self._fresh(token):
                    token = await self._issue_ahead(token)
                self._token = token
                return token.access_token
            finally:
                os.close(lock)

    async def _issue_ahead(self, last: Token) -> Token:
        try:
            return await self._issue_token(last)
        except OperationError as error:
            if self._remaining_s(last) <= 0:
                raise
            log.warning("KIS token renewal failed; using the old token", error=str(error))
            self._renewal_failed_ns = self._clock.monotonic_ns()
            return last

    async def _issue_token(self, last: Token | None) -> Token:
        now = self._clock.now()
        since = (now - last.issued_at).total_seconds() if last else ISSUE_INTERVAL_S
        if 0 <= since < ISSUE_INTERVAL_S:
            raise OperationError(
                f"KIS issues a token once a minute, and the last one is {since:.0f} s old; "
                f"retry in {ISSUE_INTERVAL_S - since:.0f} s"
            )
        text, ttl_s = await self._issue()
        ends_at = datetime.fromtimestamp(now.timestamp() + ttl_s, now.tzinfo)
        token = Token(text, now, ends_at)
        self._save(token)
        self._renewal_failed_ns = None
        return token

    def _usable(self, token: Token) -> bool:
        """Return whether the token needs no renewal, or a failed renewal is not yet due again."""
        if self._renewal_failed_ns is None:
            return self._fresh(token)
        retry_in_s = ISSUE_INTERVAL_S - (self._clock.monotonic_ns() - self._renewal_failed_ns) / 1e9
        return retry_in_s > 0 and self._remaining_s(token) > 0

    def _fresh(self, token: Token) -> bool:
        return self._remaining_s(token) > RENEW_AHEAD_S

    def _remaining_s(self, token: Token) -> float:
        return (token.ends_at - self._clock.now()).total_seconds()

    def _latest(self) -> Token | None:
        saved, unsaved = self._read(), self._unsaved
        if unsaved is None or (saved is not None and saved.issued_at > unsaved.issued_at):
            return saved
        return unsaved

    def _read(self) -> Token | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Token)
        except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def _save(self, token: Token) -> None:
        try:
            self._write(token)
        except OSError as error:
            log.error("KIS token not saved; kept in memory", error=error.strerror)
            self._unsaved = token
        else:
            self._unsaved = None

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
