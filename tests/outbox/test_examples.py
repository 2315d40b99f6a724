"""The examples run."""

from __future__ import annotations

import runpy
from pathlib import Path

from qts.domain import Secret

EXAMPLES = Path(__file__).parents[2] / "examples"


async def test_the_push_example_sends_one_push(database_url: Secret) -> None:
    main = runpy.run_path(str(EXAMPLES / "outbox_push.py"))["main"]
    assert await main(database_url) == ["BUY KRW-BTC accepted"]
