"""Accounts in the database: opening and listing them; lease.py says who may trade one."""

from __future__ import annotations

from collections.abc import Sequence

from qts.database import Database
from qts.domain import AccountKey

_OPEN = "SELECT account_open($1, $2, $3)"
_IS_LOCKED = """
SELECT EXISTS (
    SELECT FROM pg_locks, hashtextextended('qts account ' || $1, 0) AS key
     WHERE locktype = 'advisory' AND granted AND objsubid = 1
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
       AND classid = ((key >> 32) & 4294967295)::oid AND objid = (key & 4294967295)::oid)
"""


async def open_account(database: Database, key: AccountKey, *, is_live: bool) -> None:
    """Make the account known; its first opening moves the rows that are its own (0016)."""
    await database.fetchval(_OPEN, *key, is_live)


async def list_accounts(database: Database) -> Sequence[AccountKey]:
    """Return every account that was ever opened, by broker."""
    rows = await database.fetch("SELECT broker, account FROM account ORDER BY broker, opened_at")
    return [AccountKey(*row) for row in rows]


async def is_account_locked(database: Database, key: AccountKey) -> bool:
    """Return whether a run holds the account now."""
    held: bool = await database.fetchval(_IS_LOCKED, str(key))
    return held
