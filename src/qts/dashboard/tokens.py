"""Login tokens, one per role, and the key that signs sessions, in a file of the home directory."""

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
    """Role of a login; each includes the ones before it."""

    READ = 1
    TRADE = 2
    ADMIN = 3

    @property
    def label(self) -> str:
        return self.name.lower()


class _TokenFile(msgspec.Struct, frozen=True, kw_only=True):
    read: str
    trade: str
    admin: str
    key: str


class Tokens:
    """Tokens of a home directory; `is_new` if they were just created.

    The file is read again when it changes, so new tokens need no restart.
    """

    def __init__(self, file: Path, *, is_new: bool) -> None:
        self._file = file
        self._file_version: tuple[int, int] | None = None
        self._content = self._current()
        self.is_new = is_new

    @classmethod
    def of(cls, home: Path, *, renew: bool = False) -> Tokens:
        """Return the tokens of a home, created at first use; `renew` invalidates the old ones."""
        file = home / FILE
        if not renew and file.exists():
            return cls(file, is_new=False)
        content = _TokenFile(
            **{name: secrets.token_urlsafe(32) for name in _TokenFile.__struct_fields__}
        )
        _write(file, msgspec.json.encode(content))
        return cls(file, is_new=True)

    @property
    def key(self) -> bytes:
        return self._current().key.encode()

    def role_of(self, token: str) -> Role | None:
        """Return the role of a token, in constant time."""
        content, given, found = self._current(), token.encode("utf-8", "replace"), None
        for role in Role:
            if hmac.compare_digest(given, getattr(content, role.label).encode()):
                found = role
        return found

    def token(self, role: Role) -> Secret:
        return Secret(getattr(self._current(), role.label))

    def link(self, address: str, role: Role = Role.ADMIN) -> str:
        """Return a login link; browsers do not send the part after the # to a server."""
        return f"{address}/login#{self.token(role).reveal()}"

    def _current(self) -> _TokenFile:
        try:
            info = self._file.stat()
        except FileNotFoundError:
            raise RefusedError(
                f"{self._file} does not exist; create tokens with qts dashboard --new-tokens"
            ) from None
        if self._file_version != (info.st_ino, info.st_mtime_ns):
            self._content = _read(self._file)
            self._file_version = (info.st_ino, info.st_mtime_ns)
        return self._content


def _read(file: Path) -> _TokenFile:
    if file.stat().st_mode & 0o077:
        raise RefusedError(
            f"{file} is readable by others; run chmod 600 and qts dashboard --new-tokens"
        )
    try:
        return msgspec.json.decode(file.read_bytes(), type=_TokenFile)
    except msgspec.DecodeError as error:
        raise RefusedError(
            f"{file} is damaged ({error}); create tokens with qts dashboard --new-tokens"
        ) from None


def _write(file: Path, text: bytes) -> None:
    """Write the file atomically."""
    draft = file.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, text)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    draft.rename(file)
