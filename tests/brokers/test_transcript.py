"""Live trading needs a recent, complete rehearsal of the same key, host and version."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from qts.brokers import (
    ACKNOWLEDGEMENT,
    BrokersConfig,
    RehearsalEnd,
    RehearsalStart,
    RehearsalStep,
    Transcript,
    key_digest,
    mask_secrets,
    require_rehearsal,
    venue_of,
)
from qts.domain import RefusedError, Secret
from qts.venues import KisConfig, UpbitConfig

NOW = datetime(2026, 11, 17, 9, tzinfo=UTC)
VERSION = "1.2.3"
UPBIT = venue_of("upbit")
KEY = UpbitConfig(access_key=Secret("access-canary"), secret_key=Secret("secret-canary"))
LIVE = BrokersConfig(broker="upbit", mode="live", live_acknowledgement=ACKNOWLEDGEMENT)


def start(**changes: Any) -> RehearsalStart:
    given = RehearsalStart(
        at=NOW,
        version=VERSION,
        venue="upbit",
        environment="real",
        account="upbit:0123",
        key=key_digest(UPBIT, KEY),
        symbol="KRW-BTC",
        fill=False,
    )
    return replace(given, **changes)


def write(folder: Path, end: bool | None = True, **changes: Any) -> Path:
    """Write a transcript; without an end, as one that was killed."""
    with Transcript(folder, start(**changes)) as transcript:
        step = {"step": "balance", "request": "x", "answer": "y", "verdict": "ok"}
        transcript.add(RehearsalStep(at=NOW, **step))  # type: ignore[arg-type]
        if end is not None:
            transcript.add(RehearsalEnd(at=NOW, complete=end))
    return transcript.path


def require(folder: Path, config: BrokersConfig = LIVE, settings: UpbitConfig = KEY) -> None:
    require_rehearsal(config, UPBIT, settings, folder, NOW, VERSION)


def refusal(folder: Path, settings: UpbitConfig = KEY) -> str:
    with pytest.raises(RefusedError) as refused:
        require(folder, settings=settings)
    text = str(refused.value)
    assert "\n" not in text
    assert "run qts rehearse upbit, or set brokers.live_unrehearsed = true" in text
    return text


def test_a_complete_rehearsal_lets_a_live_run_start(tmp_path: Path) -> None:
    write(tmp_path)
    require(tmp_path)


def test_without_one_it_is_refused(tmp_path: Path) -> None:
    assert "it has no rehearsal in this home" in refusal(tmp_path)
    assert "it has no rehearsal in this home" in refusal(tmp_path / "missing")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"venue": "kis"}, "no rehearsal in this home"),
        ({"environment": "simulator"}, "none was at the real host"),
        ({"key": "0" * 16}, "none was with this key"),
        ({"version": "1.2.2"}, "none was with QTS 1.2.3"),
        ({"end": False}, "none was complete"),
        ({"end": None}, "none was complete"),
        ({"at": NOW - timedelta(days=30, seconds=1)}, "over 30 days old"),
        ({"at": NOW + timedelta(days=2)}, "over 30 days old"),
    ],
)
def test_one_that_does_not_fit_is_refused(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    write(tmp_path, **changes)
    assert reason in refusal(tmp_path)
    write(tmp_path, at=NOW - timedelta(days=29))
    require(tmp_path)


def test_the_last_refusal_names_what_is_missing_at_the_best_one(tmp_path: Path) -> None:
    write(tmp_path, key="0" * 16)
    write(tmp_path, end=False)
    assert "none was complete" in refusal(tmp_path)


def test_a_changed_key_needs_a_rehearsal(tmp_path: Path) -> None:
    write(tmp_path)
    assert "with this key" in refusal(tmp_path, replace(KEY, secret_key=Secret("another")))


def test_paper_and_the_setting_need_none(tmp_path: Path) -> None:
    require(tmp_path, replace(LIVE, mode="paper"))
    require(tmp_path, replace(LIVE, live_unrehearsed=True))


@given(cut=st.integers(min_value=0))
def test_a_torn_transcript_never_counts(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = tmp_path_factory.mktemp("torn")
    path = write(folder)
    data = path.read_bytes()
    path.write_bytes(data[: cut % (len(data) - 1)])  # all but the last line's end is there at most
    refusal(folder)


def test_other_files_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "notes.jsonl").write_text('{"kind": "start"}\nrubbish\n')
    (tmp_path / "empty.jsonl").write_bytes(b"")
    refusal(tmp_path)
    write(tmp_path)
    require(tmp_path)


def test_secrets_are_masked_in_texts() -> None:
    text = "Upbit says access-canary signed with secret-canary"
    assert mask_secrets(text, KEY) == "Upbit says *** signed with ***"
    kis = KisConfig(account=Secret("5012345601"), app_secret=Secret("5012345601-and-more"))
    assert mask_secrets("5012345601-and-more of 5012345601", kis) == "*** of ***"


def test_the_digest_of_a_key_reveals_nothing_and_depends_on_the_host() -> None:
    digest = key_digest(UPBIT, KEY)
    assert len(digest) == 16
    assert "canary" not in digest
    local = {"url": "http://127.0.0.1:1", "stream_url": "ws://127.0.0.1:1"}
    assert key_digest(UPBIT, replace(KEY, **local)) != digest
