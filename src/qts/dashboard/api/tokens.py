"""Bearer tokens of programs: a role and an expiry each; the database has only digests.

A token is `qts_<id>_<secret>`. The id finds the row; the digest of the secret is compared in
constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from datetime import datetime, timedelta

import msgspec

from qts.dashboard.actions import ActionLog
from qts.dashboard.session import Operator, Role
from qts.database import Database, Row
from qts.domain import RefusedError, Secret, check_name

MAX_DAYS = 3650
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_TOKEN = re.compile(r"qts_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_COLUMNS = "id, name, role, created_at, created_by, expires_at, revoked_at"
_FIND = (
    f"SELECT digest, expires_at <= clock_timestamp() AS is_expired, {_COLUMNS}"  # noqa: S608 - constants only
    " FROM api_token WHERE id = $1"
)
_LIST = (
    f"SELECT {_COLUMNS} FROM api_token WHERE $1 OR revoked_at IS NULL"  # noqa: S608 - as above
    " ORDER BY created_at DESC"
)
_CREATE = (
    "INSERT INTO api_token (id, name, role, digest, created_by, expires_at)"  # noqa: S608 - as above
    " VALUES ($1, $2, $3, $4, $5, clock_timestamp() + $6::interval)"
    f" ON CONFLICT (name) WHERE revoked_at IS NULL DO NOTHING RETURNING {_COLUMNS}"
)
_REVOKE = (
    "UPDATE api_token SET revoked_at = clock_timestamp()"  # noqa: S608 - as above
    " WHERE name = $1 AND revoked_at IS NULL"
    f" RETURNING {_COLUMNS}"
)


class ApiToken(msgspec.Struct, frozen=True, kw_only=True):
    """Token without its secret."""

    id: str
    name: str
    role: str
    created_at: datetime
    created_by: str
    expires_at: datetime
    revoked_at: datetime | None = None

    @property
    def rank(self) -> Role:
        return Role[self.role.upper()]


class InvalidTokenError(Exception):
    """Token that does not let in; its text says why."""


class ApiTokens:
    """Tokens in the database of the settings."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._log = ActionLog(database)

    async def create(
        self, name: str, role: str, days: int, operator: Operator
    ) -> tuple[ApiToken, Secret]:
        """Return a new token and its text, which is stored nowhere."""
        if not _NAME.fullmatch(name):
            raise RefusedError(
                f"name is {name[:70]!r}; expected up to 63 letters, digits, '.', '_' and '-'"
            )
        check_name("role", role, [each.label for each in Role])
        if not 1 <= days <= MAX_DAYS:
            raise RefusedError(f"days is {days}; expected 1 to {MAX_DAYS}")
        token_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
        row_id = await self._log.begin(
            operator, "token_create", name, {"role": role, "days": days, "id": token_id}
        )
        row = await self._database.fetchrow(
            _CREATE, token_id, name, role, _digest(secret), operator.actor, timedelta(days=days)
        )
        if row is None:
            text = f"token {name} exists; revoke it first, or choose another name"
            await self._log.end(row_id, "REFUSED", text)
            raise RefusedError(text)
        await self._log.end(row_id, "DONE", f"token {name} may {role}")
        return _token(row), Secret(f"qts_{token_id}_{secret}")

    async def rows(self, *, revoked: bool = False) -> list[ApiToken]:
        """Return tokens, newest first; with `revoked` those that were revoked, too."""
        return [_token(row) for row in await self._database.fetch(_LIST, revoked)]

    async def revoke(self, name: str, operator: Operator) -> ApiToken:
        """End a token at once."""
        check_name("token", name, [each.name for each in await self.rows()])
        row_id = await self._log.begin(operator, "token_revoke", name, {})
        row = await self._database.fetchrow(_REVOKE, name)
        if row is None:
            await self._log.end(row_id, "REFUSED", "it was revoked meanwhile")
            raise RefusedError(f"token {name} was revoked meanwhile")
        await self._log.end(row_id, "DONE", f"token {name} is revoked")
        return _token(row)

    async def find(self, text: str) -> ApiToken:
        """Return the token of a text; raise InvalidTokenError if it does not let in."""
        parts = _TOKEN.fullmatch(text)
        if parts is None:
            raise InvalidTokenError("unknown token")
        row = await self._database.fetchrow(_FIND, parts[1])
        known = row["digest"] if row is not None else bytes(32)
        if not hmac.compare_digest(_digest(parts[2]), known) or row is None:
            raise InvalidTokenError("unknown token")
        token = _token(row)
        if token.revoked_at is not None:
            raise InvalidTokenError("the token is revoked")
        if row["is_expired"]:
            raise InvalidTokenError(f"the token expired at {token.expires_at:%Y-%m-%d %H:%M} UTC")
        return token


def _digest(secret: str) -> bytes:
    """Return the digest; the secret is random, so that it needs no salt and no slow hash."""
    return hashlib.sha256(secret.encode()).digest()


def _token(row: Row) -> ApiToken:
    return ApiToken(**{name: row[name] for name in ApiToken.__struct_fields__})
