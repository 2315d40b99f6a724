import os
from pathlib import Path
import pytest
from qts.database import Database, DatabaseConfig
from tests.outbox.test_plans import (test_the_claim_stays_flat_while_an_old_snapshot_is_held, test_the_horizon_waits_for_a_publisher_that_has_not_committed, test_what_the_look_left_out_holds_up_those_behind_it, test_a_line_that_was_lost_is_not_kept_by_a_late_heartbeat)
from tests.outbox.test_model import _url, test_rows_live_as_the_model_says
PLANTS = {
 "none": ("", ""),
 "since": ("OR o.next_retry_at < since", ""),
 "xid": ("IF mark_xid >= pg_snapshot_xmin(pg_current_snapshot())::text::bigint THEN", "IF false THEN"),
 "first": ("AND o.id >= first_id AND o.id <> e.id", "AND o.id <> e.id"),
 "hand": ("AND (o.locked_until >= statement_timestamp()\n                            OR (o.id < e.id", "AND (false\n                            OR (o.id < e.id"),
 "floor": ("AND e.id >= first_id AND e.id <= mark_id\n             ORDER BY e.id LIMIT 1), mark_id + 1)", "AND e.id >= first_id + 1000 ORDER BY e.id LIMIT 1), mark_id + 1)"),
}
@pytest.fixture(autouse=True)
async def _plant(database_url):
    old, new = PLANTS[os.environ["PLANT"]]
    f = next(Path("src/qts/database/migrations").glob("*_outbox_horizon.sql")).read_text()
    assert old in f
    f = f.replace(old, new).replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION").replace("DROP FUNCTION outbox_claim_ordered(text, integer, text, interval, boolean);", "")
    async with Database.open(database_url, DatabaseConfig(pool_min=1, pool_max=2)) as d:
        await d.execute(f)
