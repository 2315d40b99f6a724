"""Log file rotation, and free memory."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from qts import telemetry
from qts.telemetry import TelemetryConfig
from qts.telemetry.logs import RotatingFile
from qts.telemetry.metrics import memory_free


@given(st.lists(st.text(max_size=40), max_size=60), st.integers(1, 200), st.integers(0, 4))
def test_full_files_are_rotated_and_the_newest_kept(
    texts: list[str], limit: int, keep: int
) -> None:
    lines = [text.replace("\n", " ").replace("\r", " ") + "\n" for text in texts]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "qts.log")
        file = RotatingFile(path, limit, keep)
        for line in lines:
            file.write(line)
        file.close()
        expected = [""]  # newest first
        for line in lines:
            if expected[0] and len((expected[0] + line).encode()) > limit:
                expected.insert(0, "")
            expected[0] += line
        files = [path, *(Path(folder, f"qts.log.{number}") for number in range(1, keep + 1))]
        assert [each.read_bytes().decode() for each in files if each.exists()] == expected[
            : keep + 1
        ]
        assert len(list(Path(folder).iterdir())) == min(len(expected), keep + 1)


def test_logs_go_to_the_file_of_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "qts.log"
    for word in ("first", "second"):
        telemetry.configure(TelemetryConfig(log_file=path, log_format="json"))
        telemetry.logger("test").warning(word, password="canary")
        telemetry.shutdown()
    text = path.read_text()
    assert [word in text for word in ("first", "second", "canary")] == [True, True, False]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_logger_still_writes_after_shutdown(tmp_path: Path) -> None:
    telemetry.configure(TelemetryConfig(log_file=tmp_path / "qts.log"))
    telemetry.shutdown()
    telemetry.logger("test").warning("late")
    assert telemetry.lines_dropped() == 0
    assert "late" not in (tmp_path / "qts.log").read_text()


def test_free_memory_is_a_share_of_the_total(tmp_path: Path) -> None:
    info = tmp_path / "meminfo"
    info.write_text("MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    250 kB\n")
    assert memory_free(info) == 0.25
    info.write_text("rubbish")
    assert memory_free(info) == 1.0
    assert memory_free(tmp_path / "absent") == 1.0
    assert 0 < memory_free() <= 1
