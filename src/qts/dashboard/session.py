"""Login: a token per role in a file of the home directory, and sessions as signed cookies.

A cookie contains the role, the time and a random name, signed with the key in that file, so that
sessions survive a restart and need no table. The CSRF token of an action is derived from the
cookie; another site cannot read it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path

import msgspec

from qts.domain import Clock, RefusedError, Secret

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


COOKIE = "qts_session"
MAX_FAILURES = 5  # logins per address and window
FAILURE_WINDOW_S = 60.0
MAX_ADDRESSES = 1000


class Operator(msgspec.Struct, frozen=True):
    """Who acts, and from where: a browser, or the command line of this machine."""

    actor: str
    role: Role
    address: str


class LoginSession(msgspec.Struct, frozen=True):
    role: Role
    made_at: int  # seconds since 1970
    name: str
    csrf: str

    @property
    def actor(self) -> str:
        return f"dashboard {self.role.label} {self.name[:6]}"


class LoginSessions:
    def __init__(self, key: Callable[[], bytes], clock: Clock, duration_s: float) -> None:
        self._key = key
        self._clock = clock
        self.duration_s = duration_s
        self._ended: dict[str, int] = {}  # by name: when it was created

    def begin(self, role: Role) -> tuple[LoginSession, str]:
        """Create a session; return it and its cookie."""
        name = secrets.token_urlsafe(16)
        made_at = int(self._clock.now().timestamp())
        body = f"{int(role)}.{made_at}.{name}"
        session = LoginSession(role, made_at, name, self._sign(f"csrf {body}"))
        return session, f"{body}.{self._sign(body)}"

    def find(self, cookie: str | None) -> LoginSession | None:
        body, _, signature = (cookie or "").rpartition(".")
        given = signature.encode("utf-8", "replace")  # a header may hold bytes that are not UTF-8
        if not body or not hmac.compare_digest(self._sign(body).encode(), given):
            return None
        role, made_at, name = body.split(".")
        age_s = self._clock.now().timestamp() - int(made_at)
        if name in self._ended or not -60 <= age_s <= self.duration_s:
            return None
        return LoginSession(Role(int(role)), int(made_at), name, self._sign(f"csrf {body}"))

    def end(self, session: LoginSession) -> None:
        oldest = self._clock.now().timestamp() - self.duration_s
        self._ended = {name: at for name, at in self._ended.items() if at >= oldest}
        self._ended[session.name] = session.made_at

    def _sign(self, text: str) -> str:
        digest = hmac.new(self._key(), text.encode("utf-8", "replace"), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


class LoginThrottle:
    """Limit of failed logins per address and minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: dict[str, list[int]] = {}

    def is_allowed(self, address: str) -> bool:
        return len(self._recent(address)) < MAX_FAILURES

    def record_failure(self, address: str) -> None:
        recent = [*self._recent(address), self._clock.monotonic_ns()]
        self._failed.pop(address, None)  # so that the oldest is first
        while len(self._failed) >= MAX_ADDRESSES:
            del self._failed[next(iter(self._failed))]
        self._failed[address] = recent[-MAX_FAILURES:]

    def _recent(self, address: str) -> list[int]:
        since = self._clock.monotonic_ns() - FAILURE_WINDOW_S * 1e9
        return [at for at in self._failed.get(address, ()) if at >= since]
