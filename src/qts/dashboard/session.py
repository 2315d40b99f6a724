"""Sessions: signed by a key of the home, so that they outlive a restart and need no table.

A cookie says role, moment and a random name; nobody without the key can write one. The token that
an action must carry (CSRF) follows from the cookie, and another site cannot read it.
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
FAILURES = 5  # logins that may fail
FAILURES_OVER_S = 60.0
ADDRESSES = 1000  # remembered at once


class LoginSession(msgspec.Struct, frozen=True):
    role: Role
    made_at: int  # seconds since 1970
    name: str
    csrf: str

    @property
    def actor(self) -> str:
        return f"dashboard {self.role.word} {self.name[:6]}"


class LoginSessions:
    def __init__(self, key: Callable[[], bytes], clock: Clock, lasts_s: float) -> None:
        self._key = key
        self._clock = clock
        self.lasts_s = lasts_s
        self._ended: dict[str, int] = {}  # name to the moment it was made

    def begin(self, role: Role) -> tuple[LoginSession, str]:
        """A session and its cookie."""
        name = secrets.token_urlsafe(16)
        made_at = int(self._clock.now().timestamp())
        body = f"{int(role)}.{made_at}.{name}"
        session = LoginSession(role, made_at, name, self._sign(f"csrf {body}"))
        return session, f"{body}.{self._sign(body)}"

    def find(self, cookie: str | None) -> LoginSession | None:
        body, _, signature = (cookie or "").rpartition(".")
        if not body or not hmac.compare_digest(self._sign(body).encode(), signature.encode()):
            return None
        role, made_at, name = body.split(".")
        age_s = self._clock.now().timestamp() - int(made_at)
        if name in self._ended or not -60 <= age_s <= self.lasts_s:
            return None
        return LoginSession(Role(int(role)), int(made_at), name, self._sign(f"csrf {body}"))

    def end(self, session: LoginSession) -> None:
        oldest = self._clock.now().timestamp() - self.lasts_s
        self._ended = {name: made for name, made in self._ended.items() if made >= oldest}
        self._ended[session.name] = session.made_at

    def _sign(self, text: str) -> str:
        digest = hmac.new(self._key(), text.encode("utf-8", "replace"), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


class LoginThrottle:
    """Logins that failed, by address; too many, and the address has to wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: dict[str, list[int]] = {}

    def may(self, address: str) -> bool:
        return len(self._recent(address)) < FAILURES

    def failed(self, address: str) -> None:
        recent = [*self._recent(address), self._clock.monotonic_ns()]
        self._failed.pop(address, None)  # so that the oldest stands first
        while len(self._failed) >= ADDRESSES:
            del self._failed[next(iter(self._failed))]
        self._failed[address] = recent[-FAILURES:]

    def _recent(self, address: str) -> list[int]:
        since = self._clock.monotonic_ns() - FAILURES_OVER_S * 1e9
        return [at for at in self._failed.get(address, ()) if at >= since]
