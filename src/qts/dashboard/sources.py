"""Data sources of the pages and of the API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from qts.cache import CacheConfig, CacheStore
from qts.database import Database
from qts.domain import AccountKey
from qts.outbox import StreamConfig


class DashboardSources(msgspec.Struct, frozen=True, kw_only=True):
    """Data sources of the pages."""

    database: Database
    store: CacheStore
    cache: CacheConfig
    account: AccountKey
    streams: dict[str, StreamConfig]  # of the bus
    home: Path
    record: Path
    settings: list[dict[str, Any]]  # name, value (secrets hidden), default, description
    push_key: str = ""  # public key for browsers; empty: no web push
    others: tuple[AccountKey, ...] = ()  # further accounts, of a run on several venues

    @property
    def accounts(self) -> tuple[AccountKey, ...]:
        return self.account, *self.others

    @property
    def run_log(self) -> Path | None:
        """Return the log file of the run; None: it logs to standard error."""
        found = (each["value"] for each in self.settings if each["name"] == "telemetry.log_file")
        return Path(path) if (path := next(found, None)) else None
