"""One key of KIS, ready for use: its ledger, its budget, its client. Everybody shares it."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from qts.domain import Clock
from qts.venues.budget import Budget
from qts.venues.config import KisConfig
from qts.venues.kis.client import KisClient
from qts.venues.ledger import Ledger


@asynccontextmanager
async def open_kis(config: KisConfig, home: Path, clock: Clock) -> AsyncIterator[KisClient]:
    """`home` keeps the token and the ledger. Quotes, orders and balances use this one client."""
    key, _ = config.credentials()
    name = hashlib.sha256(key.reveal().encode()).hexdigest()[:16]
    budget = Budget(config.key_limits, clock, Ledger(home / "budgets" / f"kis-{name}", clock))
    try:
        async with KisClient.open(config, budget, clock, home / "tokens") as client:
            yield client
    finally:
        budget.close()
