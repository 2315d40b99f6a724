"""`qts run` as a subprocess on a small fast market; its ledger is read from its database."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg

from qts.embedded import Home
from tests.embedded.clients import until
from tests.homes import create_home

DEADLINE_S = 60.0
# On a busy machine a paper order may get its outcome late, or only when it is given up.
UNRESOLVED = """
SELECT id FROM order_attempt
 WHERE status = 'UNKNOWN' OR (status = 'SENT' AND sent_at < clock_timestamp() - interval '1 s')
"""
# numba compiles for a second at each start; the strategies decide the same without it
# (tests/backtest/test_compiled_scan.py).
INTERPRETED = {"NUMBA_DISABLE_JIT": "1"}
COMPILED = {"NUMBA_DISABLE_JIT": "0"}
SMALL = {
    **INTERPRETED,
    "QTS_DASHBOARD__ENABLED": "false",
    "QTS_SIMULATOR__SYMBOLS": "40",
    "QTS_SIMULATOR__SPEED": "60",
    "QTS_SIMULATOR__SCAN_S": "1",
}

# For tests that need a run and not its trades: it leaves the processor to others.
SLOW_MARKET = {"QTS_SIMULATOR__SYMBOLS": "20", "QTS_SIMULATOR__SPEED": "1"}


class Run:
    """One process of `qts run` on a home."""

    def __init__(self, home: Path, *arguments: str, **environ: str) -> None:
        create_home(home)
        self.home = home
        self.report = home.parent / "summary.json"
        self._sends = "--servers-only" not in arguments
        self._database = environ.get("QTS_DATABASE__URL")
        self._errors = (home.parent / "errors.log").open("a+")
        clean = {name: value for name, value in os.environ.items() if not name.startswith("QTS_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "qts", "run", "--json", str(self.report), *arguments],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**clean, **SMALL, "QTS_HOME": str(home), **environ},
        )
        self.output = ""

    def until(self, words: str) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.output += line
            if words in line:
                return
        raise AssertionError(f"ended without {words!r}: {self.output}\n{self.errors}")

    def until_resolved(self) -> None:
        """Wait until every order has an outcome: at most orders.absent_after_s for the last."""
        assert until(lambda: self.query(UNRESOLVED) == [], seconds=DEADLINE_S)

    @property
    def errors(self) -> str:
        return Path(self._errors.name).read_text()

    def end(self, number: int | None = None, within_s: float = DEADLINE_S) -> int:
        if number is not None:
            self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=within_s)
        self.output += out or ""
        self._errors.close()
        return self.process.returncode

    def ends_well(self, number: int | None = None, within_s: float = DEADLINE_S) -> None:
        """Expect exit code 0; a run that is stopped while an outcome is unknown ends with 1."""
        if number is not None and self._sends:
            self.until_resolved()
        code = self.end(number, within_s)
        assert code == 0, f"ended with {code}: {self.output}\n{self.errors[-5000:]}"

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads(self.report.read_text())
        return summary

    def query(self, sql: str, *values: Any) -> list[asyncpg.Record]:
        """Query the database of this run."""

        async def fetch() -> list[asyncpg.Record]:
            url = self._database or Home.at(self.home).postgres_url().reveal()
            connection = await asyncpg.connect(url)
            try:
                return list(await connection.fetch(sql, *values))
            finally:
                await connection.close()

        return asyncio.run(fetch())


@contextmanager
def running(home: Path, *arguments: str, **environ: str) -> Iterator[Run]:
    run = Run(home, *arguments, **environ)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.kill()
            run.process.communicate()
        if run.process.stdout is not None:
            run.process.stdout.close()
        if not run._errors.closed:
            run._errors.close()


# Holdings of the paper broker, and positions of our ledger.
VENUE = """
SELECT symbol, quantity FROM paper_account WHERE symbol <> 'KRW' AND quantity <> 0
"""
OURS = "SELECT symbol, quantity FROM position WHERE quantity <> 0"


def holdings_and_positions(run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the venue's holdings and our positions."""
    return (
        {row[0]: row[1] for row in run.query(VENUE)},
        {row[0]: row[1] for row in run.query(OURS)},
    )
