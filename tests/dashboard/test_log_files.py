"""The last lines of the log files, and their page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qts.dashboard.handlers import decode_params
from qts.dashboard.pages import LogsParams
from qts.dashboard.run_records import MAX_BYTES, MAX_LINES, LogFiles, tail
from qts.domain import RefusedError
from tests.dashboard.conftest import Site
from tests.dashboard.test_pages import visit

RUN = (
    '{"timestamp": "2026-11-16T00:00:01Z", "level": "info", "logger": "feed", "event": "opened",'
    ' "symbols": 300}\n'
    '{"timestamp": "2026-11-16T00:00:02Z", "level": "error", "logger": "orders",'
    ' "event": "order failed", "error": "no reply"}\n'
)


def test_the_newest_line_is_first_and_levels_and_texts_filter(tmp_path: Path) -> None:
    file = tmp_path / "qts.log"
    file.write_text(RUN)
    newest, oldest = tail(file)
    assert (newest.level, newest.logger, newest.text) == (
        "error", "orders", "order failed error=no reply",
    )  # fmt: skip
    assert (oldest.at, oldest.text) == ("2026-11-16T00:00:01Z", "opened symbols=300")
    assert [each.logger for each in tail(file, "warning")] == ["orders"]
    assert [each.logger for each in tail(file, find="SYMBOLS")] == ["feed"]
    assert tail(tmp_path / "missing.log") == []


def test_only_the_end_of_a_large_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "postgres.log"
    file.write_bytes(b"".join(b"line %07d\n" % number for number in range(MAX_BYTES // 8)))
    found = tail(file)
    assert len(found) == MAX_LINES
    assert found[0].text == f"line {MAX_BYTES // 8 - 1:07d}"
    assert tail(file, find="line 0000001") == []


def test_a_secret_of_another_program_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    file.write_bytes(b"connecting to postgresql://qts:hunter2@localhost/qts\nnot UTF-8: \xff\n")
    assert len(found := tail(file)) == 2
    assert all("hunter2" not in each.text for each in found)


async def test_only_known_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "dashboard.log").write_text(RUN)
    (tmp_path / "secret.log").write_text("x")
    files = LogFiles(tmp_path, None)
    found = await files.logs()
    assert (found.file, found.has_run_log, len(found.lines)) == ("dashboard", False, 2)
    for name in ("../secret", "secret", "/etc/passwd"):
        with pytest.raises(RefusedError, match="there are: dashboard"):
            await files.logs(name)
    with pytest.raises(RefusedError, match="one of critical, debug, error"):
        decode_params({"level": "loud"}, LogsParams)
    own = LogFiles(tmp_path, tmp_path / "secret.log")
    assert list(own.files()) == ["run", "dashboard"]


async def test_the_page_filters(site: Site, browser: Any) -> None:
    (site.home / "log").mkdir()
    (site.home / "log" / "dashboard.log").write_text(RUN)
    (site.home / "log" / "postgres.log").write_text("database system is ready\n")
    async with visit(browser, site.tokens.link(site.address)) as tab:
        await tab.page.wait_for_selector("#nav a")
        await tab.page.keyboard.press("g")
        await tab.wait_text("#logs", "opened symbols=300")
        assert "2026-11-16 09:00:02" in await tab.page.inner_text("#logs")  # of Seoul
        await tab.page.select_option('[data-filter="level"]', "error")
        await tab.page.wait_for_function(
            "() => document.querySelectorAll('#logs tbody tr').length === 1"
        )
        await tab.page.select_option('[data-filter="file"]', "postgres")
        await tab.wait_text("#logs", "database system is ready")
