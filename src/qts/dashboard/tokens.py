"""Who may come in: one token for each role, and a key that signs sessions, in a file of ours."""

from __future__ import annotations

import hmac
import os
import secrets
from enum import IntEnum
from pathlib import Path

import msgspec

from qts.domain import RefusedError, Secret

FILE = "dashboard.json"


class Role(IntEnum):
    """Each may do what those before it may."""

    READ = 1
    TRADE = 2
    ADMIN = 3

    @property
    def word(self) -> str:
        return self.name.lower()


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    read: str
    trade: str
    admin: str
    key: str


class Tokens:
    """Use `of`. `fresh`: they were made just now, and nobody has been told.

    The file decides at every question: who makes other tokens need not restart anything.
    """

    def __init__(self, file: Path, *, fresh: bool) -> None:
        self._file = file
        self._seen: tuple[int, int] | None = None
        self._kept = self._now()
        self.fresh = fresh

    @classmethod
    def of(cls, home: Path, *, anew: bool = False) -> Tokens:
        """Those of the home, made at first use; `anew`: all others stop being valid."""
        file = home / FILE
        if not anew and file.exists():
            return cls(file, fresh=False)
        kept = _Kept(**{name: secrets.token_urlsafe(32) for name in _Kept.__struct_fields__})
        _write(file, msgspec.json.encode(kept))
        return cls(file, fresh=True)

    @property
    def key(self) -> bytes:
        return self._now().key.encode()

    def role_of(self, token: str) -> Role | None:
        """In the same time for every wrong token."""
        kept, given, found = self._now(), token.encode("utf-8", "replace"), None
        for role in Role:
            if hmac.compare_digest(given, getattr(kept, role.word).encode()):
                found = role
        return found

    def token(self, role: Role) -> Secret:
        return Secret(getattr(self._now(), role.word))

    def link(self, address: str, role: Role = Role.ADMIN) -> str:
        """To open once. What follows the # never leaves the browser as part of an address."""
        return f"{address}/login#{self.token(role).reveal()}"

    def _now(self) -> _Kept:
        try:
            info = self._file.stat()
        except FileNotFoundError:
            raise RefusedError(
                f"{self._file} is gone; make others: qts dashboard --new-tokens"
            ) from None
        if self._seen != (info.st_ino, info.st_mtime_ns):
            self._kept = _read(self._file)
            self._seen = (info.st_ino, info.st_mtime_ns)
        return self._kept


def _read(file: Path) -> _Kept:
    if file.stat().st_mode & 0o077:
        raise RefusedError(
            f"{file} can be read by others; run chmod 600, and qts dashboard --new-tokens"
        )
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Kept)
    except msgspec.DecodeError as error:
        raise RefusedError(
            f"{file} is damaged ({error}); make others: qts dashboard --new-tokens"
        ) from None


def _write(file: Path, text: bytes) -> None:
    """Whole or not at all."""
    draft = file.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, text)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    draft.rename(file)
