"""Sessions of processes that stopped in the middle of a transaction, and how their locks are freed.

    between two statements              the server ends it (idle_in_transaction_session_timeout)
    waiting for a lock                  the wait ends (lock_timeout), and with it the transaction
    between the messages of a statement, or with an answer the client does not take

The last the server calls active and waits for ever. Whoever has waited for a lock for as long as
a transaction may stand still ends such sessions, if they have stood still for as long.
"""

from __future__ import annotations

from datetime import timedelta

from qts import telemetry
from qts.database.connection import Connection

# A COPY waits for its client in the middle of its work, as it should.
_END_FROZEN = """
SELECT pid, pg_terminate_backend(pid)
  FROM pg_stat_activity
 WHERE datname = current_database() AND usename = current_user AND application_name = 'qts'
   AND pid <> pg_backend_pid()
   AND state = 'active' AND wait_event IN ('ClientRead', 'ClientWrite')
   AND state_change < clock_timestamp() - $1::interval
   AND query !~* '^\\s*COPY'
"""

log = telemetry.logger("database")


async def end_frozen(connection: Connection, idle_s: float) -> int:
    """End the sessions that stand still in the middle of a statement; how many there were."""
    ended = await connection.fetch(_END_FROZEN, timedelta(seconds=idle_s))
    for pid, _ in ended:
        log.warning("a session that stood still held others up and was ended", backend=pid)
    return len(ended)
