"""Login sessions as signed cookies; they survive a restart and need no table.

A cookie contains the role, the time and a random name, signed with a key from the home directory.
The CSRF token of an action is derived from the cookie; another site cannot read it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable

import msgspec

from qts.dashboard.tokens import Role
from qts.domain import Clock

COOKIE = "qts_session"
MAX_FAILURES = 5  # logins per address and window
FAILURE_WINDOW_S = 60.0
MAX_ADDRESSES = 1000


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
