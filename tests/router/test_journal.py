"""The journal and its replay: equal deliveries, torn and damaged files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qts.domain import OperationError, RefusedError
from qts.router import JournalConfig, JournalReplay, Options, Router, RouterReport, Scenario, batch
from qts.router.handlers import Messages
from qts.router.journal import TornTail, read_journal, verify_journal
from tests.router.support import (  # noqa: F401 - a fixture for every test here
    LayoutName,
    plan_for,
    scenario,
    short_stall_floor,
    until,
)

HEADER, BLOCK_HEADER, MESSAGE_BYTES = 64, 16, 96
SMALL = scenario(rate=50_000, ring_capacity=64)  # 5,000 messages
Streams = dict[tuple[int, int, int], tuple[int, int]]


def journaled(path: Path, what: Scenario = SMALL, **options: str) -> Streams:
    journal = JournalConfig(path, **options)  # type: ignore[arg-type]
    router = Router(what, options=Options(digest=True, journal=journal))
    assert router.run().verdict == "PASSED"
    return router.streams


def replayed(
    path: Path, what: Scenario = SMALL, layout: LayoutName = "two workers"
) -> tuple[Streams, RouterReport]:
    options = Options(digest=True, keep_numbers=True)
    router = Router(what, plan_for(what, layout), options=options, live=True)
    report = JournalReplay(router, path).run()
    return router.streams, report


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Streams]:
    """A journal, and what its run delivered."""
    path = tmp_path_factory.mktemp("journal") / "j"
    streams = journaled(path)
    return path.read_bytes(), streams


def block_offsets(content: bytes) -> Iterator[int]:
    at = HEADER
    while at < len(content):
        yield at
        at += BLOCK_HEADER + MESSAGE_BYTES * int.from_bytes(content[at + 4 : at + 8], "little")


# Replay


@pytest.mark.parametrize("layout", ["one worker", "two workers", "threads"])
def test_a_replay_delivers_the_same_in_every_layout(
    journal: tuple[bytes, Streams], layout: LayoutName, tmp_path: Path
) -> None:
    path = tmp_path / "j"
    path.write_bytes(journal[0])
    streams, report = replayed(path, layout=layout)
    assert streams == journal[1]
    assert report.verdict == "PASSED"
    assert report.offered == report.produced == report.delivered == 5_000
    assert f"replayed {path}: 5,000 messages" in report.notes


@pytest.mark.parametrize("fsync", ["never", "interval", "always"])
def test_every_fsync_policy_keeps_everything(fsync: str, tmp_path: Path) -> None:
    streams = journaled(tmp_path / "j", fsync=fsync)
    assert verify_journal(tmp_path / "j").messages == 5_000
    assert replayed(tmp_path / "j")[0] == streams


def test_types_without_order_replay_to_the_same_digests(tmp_path: Path) -> None:
    what = scenario(
        types=2,
        strategies=1,
        stage1_rules=[
            {"msg_type": 0, "processors": [0, 1]},
            {"msg_type": 1, "processors": [1], "when": {"price_above": 70_000}, "otherwise": [0]},
        ],
        stage2_rules=[
            {"msg_type": kind, "strategy": 0, "ordering_required": False} for kind in (0, 1)
        ],
    )
    streams = journaled(tmp_path / "j", what)
    for layout in ("one worker", "threads"):
        assert replayed(tmp_path / "j", what, layout)[0] == streams


def test_each_stage1_router_has_a_separate_file(tmp_path: Path) -> None:
    what = scenario(producers=3, stage1_routers=3, rate=20_000)
    streams = journaled(tmp_path / "j", what)
    files = [tmp_path / name for name in ("j", "j.1", "j.2")]
    assert [verify_journal(file).messages for file in files] == [1_000] * 3
    for number, file in enumerate(files):
        assert {int(p) for block in blocks(file) for p in block["producer_id"]} == {number}
    assert replayed(tmp_path / "j", what)[0] == streams
    # Fewer routers take the same files.
    assert replayed(tmp_path / "j", msgspec.structs.replace(what, stage1_routers=1))[0] == streams


def blocks(path: Path) -> list[Messages]:
    return [block for block in read_journal(path) if not isinstance(block, TornTail)]


def test_pushed_messages_are_journaled_as_they_were(tmp_path: Path) -> None:
    options = Options(journal=JournalConfig(tmp_path / "j"))
    with Router(SMALL, options=options, live=True) as router:
        router.push_many([{"msg_type": 2, "symbol_id": 9, "price": "1.5", "quantity": 3}])
    (block,) = blocks(tmp_path / "j")
    (one,) = block
    fields = ("msg_type", "symbol_id", "price", "quantity_low", "sequence_number")
    assert [int(one[name]) for name in fields] == [2, 9, 150_000_000, 3, 0]
    assert int(one["timestamp_ns"]) > 0


def test_a_stopped_replay_reports_what_was_never_sent(
    journal: tuple[bytes, Streams], tmp_path: Path
) -> None:
    (tmp_path / "j").write_bytes(journal[0])
    options = Options(keep_numbers=True)
    held: list[Messages] = []

    def stop_at_once(messages: Messages) -> None:
        held.append(messages)
        run.stop()

    router = Router(SMALL, options=options, strategies={0: batch(stop_at_once)}, live=True)
    run = JournalReplay(router, tmp_path / "j")
    run.start()
    until(lambda: run.wait(0.1))
    report = run.report
    assert report.verdict == "PASSED"
    assert report.produced < report.offered == 5_000
    missing = f"{5_000 - report.produced:,} messages of the journal were never sent"
    assert missing in report.notes


# Damage


def interesting_cuts(content: bytes) -> Iterator[int]:
    offsets = [*block_offsets(content), len(content)]
    for at in [offsets[0], offsets[1], offsets[len(offsets) // 2], offsets[-2]]:
        yield from (at, at + 1, at + BLOCK_HEADER - 1, at + BLOCK_HEADER, at + BLOCK_HEADER + 1)
        yield at + BLOCK_HEADER + MESSAGE_BYTES - 1
    yield len(content) - 1


def test_a_torn_end_loses_its_block_only_wherever_it_is_torn(
    journal: tuple[bytes, Streams], tmp_path: Path
) -> None:
    content, path = journal[0], tmp_path / "j"
    whole = list(block_offsets(content))
    for cut in interesting_cuts(content):
        path.write_bytes(content[:cut])
        begun = [at for at in [*whole, len(content)] if at <= cut][-1]
        found = verify_journal(path)
        assert found.messages == sum(
            int.from_bytes(content[at + 4 : at + 8], "little") for at in whole if at < begun
        )
        assert found.torn == (TornTail(begun, cut - begun) if cut > begun else None)


def test_a_torn_journal_is_replayed_up_to_its_torn_end(
    journal: tuple[bytes, Streams], tmp_path: Path
) -> None:
    path = tmp_path / "j"
    last = list(block_offsets(journal[0]))[-1]
    path.write_bytes(journal[0][: last + 50])
    whole = verify_journal(path).messages
    _, report = replayed(path)
    assert report.verdict == "PASSED"
    assert report.delivered == whole
    torn = f"is torn: 50 bytes from byte {last:,} on are part of a block and were skipped"
    assert any(torn in note for note in report.notes)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_flipped_bit_is_always_detected(
    journal: tuple[bytes, Streams], tmp_path: Path, data: st.DataObject
) -> None:
    content, path = bytearray(journal[0]), tmp_path / "j"
    starts = [*block_offsets(journal[0]), len(content)]
    block = data.draw(st.integers(0, len(starts) - 2))
    # Block headers are short, and the place where a wrong bit could do most.
    size = data.draw(st.sampled_from([BLOCK_HEADER, starts[block + 1] - starts[block]]))
    content[starts[block] + data.draw(st.integers(0, size - 1))] ^= 1 << data.draw(
        st.integers(0, 7)
    )
    path.write_bytes(content)
    with pytest.raises(OperationError, match=f"j is damaged at byte {starts[block]}: its checksum"):
        verify_journal(path)


def test_a_damaged_journal_is_not_replayed_at_all(
    journal: tuple[bytes, Streams], tmp_path: Path
) -> None:
    content = bytearray(journal[0])
    content[-1] ^= 1
    (tmp_path / "j").write_bytes(content)
    router = Router(SMALL, options=Options(keep_numbers=True), live=True)
    with pytest.raises(OperationError, match="damaged at byte"):
        JournalReplay(router, tmp_path / "j")
    router.start()
    router.abort()
    assert router.report.produced == 0


@pytest.mark.parametrize("content", [b"", b"QTSJRNL1", b"\0" * 64, b"QTSJRNL2" + b"\0" * 56])
def test_what_is_no_journal_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(content)
    with pytest.raises(RefusedError, match="is not a journal of this version"):
        verify_journal(tmp_path / "j")


def test_a_journal_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"cannot read journal .*: No such file"):
        verify_journal(tmp_path / "none")
    with pytest.raises(RefusedError, match="not a regular file"):
        verify_journal(tmp_path)


def test_a_journal_of_types_the_scenario_does_not_route_is_refused(
    journal: tuple[bytes, Streams], tmp_path: Path
) -> None:
    (tmp_path / "j").write_bytes(journal[0])
    with pytest.raises(
        RefusedError, match="holds messages of type 1, which no rule of scenario small"
    ):
        replayed(tmp_path / "j", scenario(types=1, strategies=1))


def test_a_replay_needs_a_router_that_keeps_numbers(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="keep_numbers=True"):
        JournalReplay(Router(SMALL, live=True), tmp_path / "j")


# Writing


@pytest.mark.parametrize("taken", ["j", "j.1"])
def test_a_file_that_exists_is_never_written_over(taken: str, tmp_path: Path) -> None:
    (tmp_path / taken).write_text("mine")
    what = scenario(stage1_routers=2)
    with pytest.raises(RefusedError, match=rf"journal .*{taken} exists and is never written over"):
        Router(what, options=Options(journal=JournalConfig(tmp_path / "j")))
    assert (tmp_path / taken).read_text() == "mine"
    assert [file.name for file in tmp_path.iterdir()] == [taken]


def test_a_journal_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"cannot write journal .*: No such file or directory"):
        Router(SMALL, options=Options(journal=JournalConfig(tmp_path / "none" / "j")))


FULL_DISK = """
import resource, sys
from pathlib import Path
import msgspec
from qts.router import JournalConfig, Options, Router
from tests.router.support import plan_for, scenario

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
what = scenario(rate=1e6, seconds=30)
router = Router(
    what, plan_for(what, sys.argv[2]), options=Options(journal=JournalConfig(Path(sys.argv[1])))
)
report = router.run()
print(msgspec.json.encode(report.to_json()).decode())
"""


@pytest.mark.parametrize("layout", ["one worker", "threads"])
def test_a_full_disk_fails_the_run_by_name_and_everything_is_accounted_for(
    layout: str, tmp_path: Path
) -> None:
    path = tmp_path / "j"
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path), layout],
        capture_output=True, text=True, timeout=60, check=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    report = msgspec.json.decode(done.stdout)
    assert report["verdict"] == "FAILED"
    assert report["failures"] == [f"journal failed: {path}: File too large"]
    assert report["produced"] == report["delivered"] + report["undelivered"]
    assert sum(at["count"] for at in report["undelivered_at"]) == report["undelivered"]
    assert report["seconds"] < 10
    found = verify_journal(path)  # what fitted is whole
    assert 0 < found.messages <= report["produced"]
    assert np.concatenate(blocks(path)).size == found.messages
