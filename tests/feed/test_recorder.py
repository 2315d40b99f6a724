"""The recorder: append-only files that survive a kill, hold no secret and can be read again."""

from __future__ import annotations

import itertools
import json
import os
import resource
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
import zstandard

from qts.domain import ManualClock, OperationError, RefusedError, Secret, SystemClock
from qts.feed import Recorder, read_records
from qts.feed.recorder import _finish, compress
from qts.feed.replay import recorded_files
from qts.machine import DiskGuard
from qts.telemetry import metric_samples
from tests.feed.market import MONDAY_OPEN
from tests.feed.records import record

REPOSITORY = Path(__file__).parents[2]


def _recorder(
    folder: Path, rotate_mb: float = 256, secrets: list[Secret] | None = None
) -> Recorder:
    return Recorder(folder, SystemClock(), rotate_mb, secrets or [])


def test_what_is_written_is_read_again_in_its_order(tmp_path: Path) -> None:
    recorder = _recorder(tmp_path)
    records = [record(n, price=n / 7, raw={"stck_prpr": str(n)}) for n in range(1, 200)]
    for each in records:
        recorder.write(each)
    assert list(read_records(tmp_path)) == records
    recorder.close()
    assert list(read_records(tmp_path)) == records
    assert [path.name for path in recorded_files(tmp_path)] == ["2026-11-16.0001.jsonl.zst"]


def test_the_line_has_the_form_that_consumers_rely_on(tmp_path: Path) -> None:
    recorder = _recorder(tmp_path)
    raw, quote, at = {"stck_prpr": "71900"}, (71800.0, 71900.0), 1_794_787_201.0
    recorder.write(record(1, price=71900.0, volume=5.0, raw=raw, quote=quote, venue_at=at))
    (path,) = recorded_files(tmp_path)
    assert json.loads(path.read_text()) == {
        "schema": 2,
        "number": 1,
        "snapshot": {
            "meta": {
                "time": "2026-11-16T00:00:01Z",
                "session_id": "session",
                "mode": "PROD",
                "tick_source": "kis_rest",
                "loop_interval_ms": 30000.0,
            },
            "context": {"source": "market", "stage": "raw", "symbol": "005930", "market": "KRX"},
            "observation": {
                "inputs": {
                    "price": 71900.0,
                    "volume": 5.0,
                    "kis_raw": {"stck_prpr": "71900"},
                    "bid": 71800.0,
                    "ask": 71900.0,
                    "venue_at": 1794787201.0,
                },
                "computed": {},
                "state": {"polling_mode": "normal"},
            },
        },
    }
    recorder.close()


def test_a_new_day_in_seoul_starts_a_new_file(tmp_path: Path) -> None:
    recorder = _recorder(tmp_path)
    recorder.write(record(1, time=MONDAY_OPEN + timedelta(hours=14, minutes=59)))
    recorder.write(record(2, time=MONDAY_OPEN + timedelta(hours=15, minutes=1)))
    recorder.close()
    names = [path.name for path in recorded_files(tmp_path)]
    assert names == ["2026-11-16.0001.jsonl.zst", "2026-11-17.0001.jsonl.zst"]


def test_a_full_file_is_closed_compressed_and_followed_by_another(tmp_path: Path) -> None:
    recorder = _recorder(tmp_path, rotate_mb=0.01)
    records = [record(n) for n in range(1, 101)]
    for each in records:
        recorder.write(each)
    recorder.close()
    assert len(recorded_files(tmp_path)) >= 3
    assert all(path.suffix == ".zst" for path in recorded_files(tmp_path))
    assert list(read_records(tmp_path)) == records


def test_a_restart_starts_a_new_file_and_changes_no_old_one(tmp_path: Path) -> None:
    first = tmp_path / "2026-11-16.0001.jsonl"
    line = msgspec.json.encode(record(1))
    first.write_bytes(line + b"\n" + line[:50])
    recorder = _recorder(tmp_path)
    recorder.write(record(2))
    recorder.close()
    assert [each.number for each in read_records(tmp_path)] == [1, 2]
    packed = (tmp_path / "2026-11-16.0001.jsonl.zst").read_bytes()
    plain = zstandard.ZstdDecompressor().stream_reader(packed).read()
    assert plain == line + b"\n" + line[:50]


def test_a_file_beside_its_compressed_copy_is_read_once(tmp_path: Path) -> None:
    recorder = _recorder(tmp_path)
    recorder.write(record(1))
    (plain,) = recorded_files(tmp_path)
    data = plain.read_bytes()
    recorder.close()
    plain.write_bytes(data)
    assert len(list(read_records(tmp_path))) == 1


def test_a_file_that_is_compressed_while_the_folder_is_read_is_read(tmp_path: Path) -> None:
    first = _recorder(tmp_path)
    first.write(record(1))
    first.close()
    second = _recorder(tmp_path)
    second.write(record(2))
    records = read_records(tmp_path)
    assert next(records).number == 1
    second.close()
    assert [each.number for each in records] == [2]


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "2026-11-16.0001.jsonl"
    path.write_bytes(b"{}\n" + msgspec.json.encode(record(1)) + b"\n")
    with pytest.raises(OperationError, match=r"0001\.jsonl, line 1: not a record"):
        list(read_records(tmp_path))


def test_a_second_recorder_on_the_folder_is_refused(tmp_path: Path) -> None:
    recorder = _recorder(tmp_path)
    with pytest.raises(RefusedError, match="written by another process"):
        _recorder(tmp_path)
    recorder.close()


def test_secrets_are_masked_by_name_by_look_and_by_value(tmp_path: Path) -> None:
    recorder = _recorder(tmp_path, secrets=[Secret("canary-1234")])
    raw = {
        "appkey": "PSabcdef",
        "echo": "x canary-1234 y",
        "deep": {"authorization": "Bearer eyJhbGciOi.payload.sig", "list": ["a=1"]},
        "stck_prpr": "71900",
    }
    recorder.write(record(1, raw=raw))
    recorder.close()
    (again,) = read_records(tmp_path)
    seen = again.snapshot.observation.inputs.kis_raw
    assert seen["appkey"] == "***"
    assert seen["echo"] == "x *** y"
    assert seen["deep"] == {"authorization": "***", "list": ["a=1"]}
    assert seen["stck_prpr"] == "71900"


@pytest.mark.parametrize(
    "raw",
    [
        {name: "canary-5678"}
        for name in [
            "password",
            "passwd",
            "passphrase",
            "client_secret",
            "appkey",
            "app_key",
            "api-key",
            "access_key",
            "private_key",
            "approval_key",
            "Authorization",
            "signature",
            "credential",
            "access_token",
            "pwd",
            "cookie",
            "session_id",
        ]
    ]
    + [
        {"url": "https://user:canary-5678@host/"},
        {"text": "Bearer canary-5678"},
        {"text": "eyJcanary-5678.canary-5678.x"},
        {"text": "https://api.telegram.org/bot12345:canary-5678/send"},
        {"text": "appkey=canary-5678"},
    ],
)
def test_whatever_looks_like_a_secret_is_masked(tmp_path: Path, raw: dict[str, str]) -> None:
    recorder = _recorder(tmp_path)
    recorder.write(record(1, raw=raw))
    (path,) = recorded_files(tmp_path)
    assert "canary-5678" not in path.read_text()
    recorder.close()


def test_files_are_ours_alone(tmp_path: Path) -> None:
    folder = tmp_path / "record"
    recorder = _recorder(folder)
    recorder.write(record(1))
    recorder.close()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_a_full_disk_loses_records_loudly_and_tears_no_line_in_the_middle(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk."""
    recorder = _recorder(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        for n in range(1, 9):
            recorder.write(record(n))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    recorder.write(record(99))
    recorder.close()
    numbers = [each.number for each in read_records(tmp_path)]
    assert recorder.lost > 0
    assert recorder.written == len(numbers)
    assert numbers[-1] == 99
    assert numbers == sorted(numbers)


def test_a_full_disk_does_not_fill_the_folder_with_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    recorder = _recorder(tmp_path)
    recorder.write(record(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        for n in range(2, 100):
            recorder.write(record(n))
    recorder.write(record(100))
    assert len(recorded_files(tmp_path)) == 1
    recorder.close()
    assert recorder.lost == 98
    assert [each.number for each in read_records(tmp_path)] == [1, 100]


def test_a_file_whose_sync_fails_is_closed_anyway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    path = tmp_path / "2026-11-16.0001.jsonl"
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(OSError, match="Input/output error"):
        _finish(file, path)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)


def test_a_torn_line_that_cannot_be_removed_ends_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def half(file: int, data: bytes) -> int:
        return write(file, data[:50])

    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    recorder = _recorder(tmp_path)
    recorder.write(record(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        patch.setattr(os, "ftruncate", broken)
        recorder.write(record(2))
    recorder.write(record(3))
    recorder.close()
    assert [each.number for each in read_records(tmp_path)] == [1, 3]


def test_a_failed_sync_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_file: int) -> None:
        raise OSError(5, "Input/output error")

    recorder = _recorder(tmp_path)
    monkeypatch.setattr(os, "fdatasync", broken)
    recorder.write(record(1))
    recorder.close()
    assert "record sync failed" in capsys.readouterr().err


class ShortDisk:
    """A disk of 1 GB whose free space the test sets."""

    def __init__(self, free: int) -> None:
        self.free = free

    def statvfs(self, _folder: Path) -> os.statvfs_result:
        return os.statvfs_result((1, 1, 10**9, self.free, self.free, 0, 0, 0, 0, 255))


def _stopped_metric() -> float:
    ((_, value),) = metric_samples()["qts_recording_stopped"]
    return value


async def test_recording_stops_before_the_disk_is_full_and_resumes_with_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock, disk = ManualClock(), ShortDisk(5_000_000)
    recorder = Recorder(tmp_path, clock, guard=DiskGuard(tmp_path, 2_000_000, disk.statvfs))
    numbers = itertools.count(1)

    async def write_a_second(free: int) -> list[int]:
        disk.free = free
        await clock.advance(1.0)
        chosen = list(itertools.islice(numbers, 10))
        for number in chosen:
            recorder.write(record(number))
        return chosen

    kept = [*await write_a_second(5_000_000), *await write_a_second(2_000_000)]
    assert recorder.stopped == ""
    await write_a_second(1_999_999)
    assert recorder.stopped == "1 MB free, feed.min_free_mb is 2"
    assert _stopped_metric() == 1
    for free in (0, 2_000_000, 2_399_999):  # resumes a fifth above the limit
        await write_a_second(free)
    assert (recorder.written, recorder.skipped, recorder.lost) == (20, 40, 0)
    assert capsys.readouterr().err.count("recording stopped") == 1
    kept += await write_a_second(2_400_000)
    assert recorder.stopped == ""
    assert _stopped_metric() == 0
    assert "recording resumed" in capsys.readouterr().err
    recorder.close()
    assert [each.number for each in read_records(tmp_path)] == kept


def _touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_bytes(zstandard.compress(b""))


def test_old_records_are_deleted_at_the_start_and_with_each_new_day(tmp_path: Path) -> None:
    _touch(
        tmp_path,
        "2026-10-01.0001.jsonl.zst",
        "2026-11-12.0001.jsonl.zst",
        "2026-11-13.0001.jsonl.zst",
        "2026-11-13.0002.jsonl.zst",
        "notes-2026-01-01.txt",
        "2026-13-45.0001.jsonl.zst",
    )
    others = {"notes-2026-01-01.txt", "2026-13-45.0001.jsonl.zst", ".lock"}
    clock = ManualClock(start=MONDAY_OPEN)
    recorder = Recorder(tmp_path, clock, keep_days=2)
    recorder._disk.submit(lambda: None).result()
    kept = {path.name for path in tmp_path.iterdir()} - others
    assert {name[:10] for name in kept} == {"2026-11-12", "2026-11-13"}
    recorder.write(record(1, time=MONDAY_OPEN))
    recorder.write(record(2, time=MONDAY_OPEN + timedelta(days=1)))
    recorder.write(record(3, time=MONDAY_OPEN + timedelta(days=2)))
    assert (tmp_path / "2026-11-18.0001.jsonl").exists()
    recorder.close()
    names = {path.name for path in tmp_path.iterdir()}
    assert {name[:10] for name in names - others} == {"2026-11-16", "2026-11-17", "2026-11-18"}
    assert others <= names


def test_keep_days_zero_deletes_nothing(tmp_path: Path) -> None:
    _touch(tmp_path, "2001-01-01.0001.jsonl.zst", "2026-11-13.0001.jsonl.zst")
    recorder = Recorder(tmp_path, ManualClock(start=MONDAY_OPEN), keep_days=0)
    recorder.write(record(1))
    recorder.close()
    assert len(recorded_files(tmp_path)) == 3


def test_a_clock_that_jumps_ahead_deletes_nothing_on_that_day(tmp_path: Path) -> None:
    _touch(tmp_path, "2026-11-12.0001.jsonl.zst", "2026-11-13.0001.jsonl.zst")
    recorder = Recorder(tmp_path, ManualClock(start=MONDAY_OPEN), keep_days=30)
    recorder.write(record(1))
    recorder.write(record(2, time=MONDAY_OPEN + timedelta(days=3650)))
    recorder.close()
    assert len(recorded_files(tmp_path)) == 4


def test_a_full_disk_during_compression_leaves_the_plain_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_file: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "2026-11-16.0001.jsonl"
    path.write_bytes(b"{}\n")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        compress(path)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("kills", [30, pytest.param(100, marks=pytest.mark.soak)])
def test_killed_at_random_every_whole_line_is_good_and_nothing_earlier_changes(
    tmp_path: Path, kills: int
) -> None:
    command = [sys.executable, "-m", "tests.feed.kill_writer", str(tmp_path / "record"), str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    lines, files = map(int, done.stdout.split())
    assert lines > 1000
    assert files > kills
