"""A disk that is short of space: recording stops first, trading goes on, PostgreSQL has room."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.acceptance.runs import running
from tests.embedded.clients import until

STOPPED = "recording stopped; the disk is short of space"
SIZE_MB = 200
# Ten minutes are ten hours of the simulated market, in which its index may move by 8 %.
MOVING_MARKET = {
    "QTS_RISK__STOPS__VOLATILITY_WARNING": "0.5",
    "QTS_RISK__STOPS__VOLATILITY_HALF": "0.6",
    "QTS_RISK__STOPS__VOLATILITY_KILL": "0.7",
}


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 200 MB; needs root."""
    folder.mkdir()
    subprocess.run(
        ["/bin/mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "tmpfs", folder], check=True
    )
    try:
        yield folder
    finally:
        subprocess.run(["/bin/umount", "--lazy", folder], check=True)


@pytest.mark.soak
def test_a_run_trades_on_while_the_disk_is_too_full_to_record(tmp_path: Path) -> None:
    """A floor above what is free stands in for the full disk."""
    floor_mb = shutil.disk_usage(tmp_path).free // 10**6 + 10_000
    home = tmp_path / "home"
    with running(home, QTS_FEED__MIN_FREE_MB=str(floor_mb)) as run:
        run.until("Ready")
        assert until(lambda: run.query("SELECT count(*) FROM fill")[0][0] > 5)
        run.ends_well(signal.SIGTERM)
        assert run.errors.count(STOPPED) == 1
        assert not list((home / "record").glob("*.jsonl*"))
        assert run.summary["verdict"] == "OK"
        assert run.summary["fills"] > 0


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_ten_minutes_on_a_disk_of_200_mb(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "disk") as disk,
        running(home := disk / "home", "--duration", "600s", **MOVING_MARKET) as run,
    ):
        run.until("OK after")
        run.ends_well()
        assert STOPPED in run.errors
        assert list((home / "record").glob("*.jsonl*"))
        logs = "".join(path.read_text(errors="replace") for path in (home / "log").iterdir())
        assert "No space left" not in run.errors + logs
        assert shutil.disk_usage(disk).free > 0.3 * SIZE_MB * 10**6
        assert run.summary["fills"] > 0
