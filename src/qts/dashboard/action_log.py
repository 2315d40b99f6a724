"""Log of the actions of operators: a row before the action, its outcome in the same row."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from qts.dashboard.session import Operator
from qts.database import Database

Outcome = Literal["DONE", "REFUSED", "FAILED"]


class ActionRow(msgspec.Struct, frozen=True):
    """One action of an operator: who, when, what, why and how it ended."""

    id: int
    at: datetime
    actor: str
    role: str
    address: str
    action: str
    target: str
    detail: dict[str, Any]
    outcome: str
    message: str


class ActionLog:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(
        self, operator: Operator, action: str, target: str, detail: Mapping[str, Any]
    ) -> int:
        """Insert the row of an action and return its id; an error here prevents the action."""
        row_id: int = await self._database.fetchval(
            "INSERT INTO dashboard_action (actor, role, address, action, target, detail)"
            " VALUES ($1, $2, $3, $4, $5, $6) RETURNING id",
            operator.actor,
            operator.role.label,
            operator.address,
            action,
            target,
            dict(detail),
        )
        return row_id

    async def end(self, row_id: int, outcome: Outcome, message: str = "") -> None:
        """Store the outcome; the run may have stored that of a manual command before."""
        await self._database.execute(
            "UPDATE dashboard_action SET outcome = $2, message = $3"
            " WHERE id = $1 AND outcome = 'BEGUN'",
            row_id,
            outcome,
            message,
        )

    async def login(self, actor: str, role: str, address: str, outcome: Outcome) -> None:
        await self._database.execute(
            "INSERT INTO dashboard_action (actor, role, address, action, outcome)"
            " VALUES ($1, $2, $3, 'login', $4)",
            actor,
            role,
            address,
            outcome,
        )

    async def rows(self, limit: int, before: int | None = None) -> list[ActionRow]:
        """Return the newest rows first, those before an id if it is given."""
        rows = await self._database.fetch(
            "SELECT id, at, actor, role, address, action, target, detail, outcome, message"
            " FROM dashboard_action WHERE $2::bigint IS NULL OR id < $2 ORDER BY id DESC LIMIT $1",
            limit,
            before,
        )
        return [ActionRow(*row) for row in rows]
