"""One loop and one pool for all examples of a property: their sessions plan each statement once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from qts.database import Database, DatabaseConfig
from qts.domain import Secret

TABLES = (
    "signal, order_intent, order_attempt, broker_order, fill, position, market_state, safety_log, "
    "account_snapshot, reconcile_mark, outbox_event, outbox_event_id, outbox_archive"
)


class Examples:
    """A migrated database, and the loop that it is opened in; each example calls `begin`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, database: Database) -> None:
        self._loop = loop
        self.database = database

    def begin(self) -> None:
        """End what an example before has left, and empty the tables of orders."""
        self.do(self._cancel_tasks())
        self.do(self.database.execute(f"TRUNCATE {TABLES}"))

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)

    async def _cancel_tasks(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


@contextmanager
def opened(url: Secret) -> Iterator[Examples]:
    loop = asyncio.new_event_loop()
    try:
        opening = Database.open(url, DatabaseConfig(pool_min=1, pool_max=6))
        examples = Examples(loop, loop.run_until_complete(opening.__aenter__()))
        yield examples
        examples.do(examples._cancel_tasks())
        examples.do(opening.__aexit__(None, None, None))
    finally:
        loop.close()
