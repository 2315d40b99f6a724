"""The Router page shows the last router run of the home."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from pathlib import Path
from typing import Any

from qts.router import load_last_report, save_last_report
from tests.dashboard.conftest import Site
from tests.dashboard.test_pages import shoot, visit

ROUTE = ("-m", "qts", "dev", "router", "run", "baseline", "--duration", "200ms", "--oversubscribe")


async def route(home: Path) -> tuple[int, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("QTS_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *ROUTE,
        env={**clean, "QTS_HOME": str(home)},
        cwd=home.parent,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, out.decode()


async def test_a_run_of_the_router_is_shown_with_plan_rate_and_stages(
    site: Site, browser: Any
) -> None:
    async with visit(browser, site.tokens.link(site.address)) as tab:
        assert "No router run" in await tab.open("router")
        code, out = await route(site.home)
        assert code == 0, out
        await tab.wait_text("#route", "baseline")  # the open page refreshes itself
        report = load_last_report(site.home)
        assert report is not None
        text = await tab.page.inner_text("main")
        for words in ("PASSED", f"{report['delivered']:,}", f"{report['offered']:,}"):
            assert words in text
        assert "producer 0" in text
        rows = await tab.page.locator("main table").last.locator("tbody tr").all_inner_texts()
        assert [row.split()[0] for row in rows] == list(report["latency_us"])
        assert all(len(row.split()) == 7 for row in rows)
        await shoot(tab.page, "router.png")


async def test_without_a_home_nothing_is_stored(tmp_path: Path) -> None:
    code, out = await route(tmp_path / "none")
    assert code == 0, out
    assert not (tmp_path / "none").exists()
    assert load_last_report(tmp_path / "none") is None


def test_the_last_report_is_stored(tmp_path: Path) -> None:
    assert save_last_report(tmp_path, {"scenario": "one"}, 1.0)
    assert save_last_report(tmp_path, {"scenario": "two"}, 2.0)
    assert load_last_report(tmp_path) == {"at": 2.0, "scenario": "two"}
    assert [path.name for path in tmp_path.iterdir()] == ["router.json"]
    assert stat.S_ISREG((tmp_path / "router.json").stat().st_mode)


def test_a_damaged_report_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "router.json").write_text("{")
    assert load_last_report(tmp_path) is None
