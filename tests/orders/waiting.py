"""Stop orders that wait, as a run stores them."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

from qts.database import Database
from qts.domain import AccountKey, OrderType, Side
from qts.risk import OrderProposal

_STORE = (
    "INSERT INTO stop_order (id, broker, account, strategy_key, proposal)"
    " VALUES ($1, $2, $3, $4, $5)"
)


async def store_stop_order(database: Database, key: AccountKey, **more: Any) -> UUID:
    now = datetime.now(UTC)
    fields: dict[str, Any] = {
        "strategy_key": "scalper",
        "symbol": "KRW-BTC",
        "side": Side.BUY,
        "type": OrderType.MARKET,
        "quantity": Decimal(2),
        "signal_id": uuid4(),
        "decided_at": now,
        "expires_at": now,
        "trigger": Decimal(110),
        **more,
    }
    proposal = OrderProposal(**fields)
    id_ = proposal.signal_id
    await database.execute(_STORE, id_, *key, proposal.strategy_key, proposal)
    return id_
