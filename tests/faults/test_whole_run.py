"""Whole runs under random faults: no order is lost or doubled, and positions equal holdings.

PostgreSQL and Valkey of the run, the run itself, its streams, the replies of the venue and the
venue's clock fail at random moments; QTS_SEED repeats them. Between faults the run has to trade.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.whole_run import SAFETY, whole_run
from tests.outbox.worker_group import seed

SHORT, LONG = 9, 100  # faults; nine are one of each kind
TRADES = 2  # between two faults
# A venue that has an order which was given up; everything is sold; the operator has to release.
FORBIDDEN = {"FS043", "FS070", "FS104", "FS110", "FS112"}


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(SHORT, marks=pytest.mark.timeout(300)),
        pytest.param(LONG, marks=(pytest.mark.soak, pytest.mark.timeout(2400))),
    ],
)
@pytest.mark.parametrize("name", ["kis", pytest.param("upbit", marks=pytest.mark.soak)])
async def test_no_order_is_lost_or_doubled_by_faults(
    name: str, faults: int, tmp_path: Path
) -> None:
    await survive(name, faults, tmp_path, seed() if faults == LONG else 1)


async def survive(name: str, faults: int, folder: Path, chosen: int) -> None:
    """Trade through faults; then compare the ledger with the venue's record."""
    async with whole_run(name, folder, chosen) as whole:
        await whole.start()
        await whole.trades(TRADES)
        for _ in range(faults):
            began, fault = time.monotonic(), await whole.strike()
            await whole.trades(TRADES)
            print(f"{name}: {fault}; traded again after {time.monotonic() - began:.1f} s")
        await whole.settle()
        summary = await whole.stop()
        await whole.start("--servers-only")
        wrong = await whole.judge()
        codes = Counter((row["code"], row["state_after"]) for row in await whole.query(SAFETY))
        await whole.stop()
    print(f"{name}: {dict(codes)}")
    assert wrong == []
    assert (summary["verdict"], summary["books_agree"]) == ("OK", True), summary
    assert {code for code, _ in codes} & FORBIDDEN == set()
    assert "LOCKDOWN" not in {state for _, state in codes}
