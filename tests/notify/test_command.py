"""`qts notify`, and a run with a notification channel."""

from __future__ import annotations

import asyncio
import json
import signal
import stat
import sys
from pathlib import Path

import pytest

from qts.domain import Secret
from tests.acceptance.runs import INTERPRETED
from tests.cli.test_run import NO_DASHBOARD, _clean_environ
from tests.notify.receiver import Receiver

CANARY = "canary-1138"


async def qts(folder: Path, *arguments: str, **environ: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "qts",
        *arguments,
        env={**_clean_environ(), "QTS_HOME": str(folder / "home"), **environ},
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, out.decode(), err.decode()


def channels(receiver: Receiver, database_url: Secret) -> dict[str, str]:
    return {
        "DATABASE_URL": database_url.reveal(),
        "QTS_NOTIFY__SLACK__URL": f"{receiver.url}/{CANARY}",
        "QTS_NOTIFY__WEBHOOK__URL": f"{receiver.url}/in",
        "QTS_NOTIFY__WEBHOOK__KEY": "key",
    }


async def test_a_test_reaches_every_channel(
    receiver: Receiver, database_url: Secret, tmp_path: Path
) -> None:
    environ = channels(receiver, database_url)
    code, out, err = await qts(tmp_path, "notify", "test", **environ)
    assert (code, out, err) == (0, "slack: sent\nwebhook: sent\n", "")
    assert len(receiver.accepted) == 2
    code, out, _ = await qts(tmp_path, "notify", "status", "--json", **environ)
    assert [each["channel"] for each in json.loads(out)["channels"]] == ["slack", "webhook"]


async def test_a_test_that_fails_says_where_and_shows_no_address(
    receiver: Receiver, database_url: Secret, tmp_path: Path
) -> None:
    receiver.answers.append(403)
    code, out, err = await qts(
        tmp_path, "notify", "test", "--channel", "slack", **channels(receiver, database_url)
    )
    assert code == 1
    assert "answered 403" in out
    assert err == "qts: not sent: slack\n"
    assert CANARY not in out + err


@pytest.mark.parametrize(
    ("arguments", "environ", "message"),
    [
        ((), {}, "no channel is configured"),
        (("--channel", "pager"), {"QTS_NOTIFY__LOG": "true"}, "channel pager is not configured"),
        ((), {"QTS_NOTIFY__TELEGRAM__CHAT": "1"}, "notify.telegram.token is not set"),
    ],
)
async def test_what_cannot_be_tried_is_refused(
    database_url: Secret,
    tmp_path: Path,
    arguments: tuple[str, ...],
    environ: dict[str, str],
    message: str,
) -> None:
    code, _, err = await qts(
        tmp_path, "notify", "test", *arguments, DATABASE_URL=database_url.reveal(), **environ
    )
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


async def test_a_key_is_written_once_and_private(tmp_path: Path) -> None:
    code, out, _ = await qts(tmp_path, "notify", "key", "push.key")
    assert code == 0
    assert "applicationServerKey B" in out
    file = tmp_path / "push.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().strip() not in out
    code, _, err = await qts(tmp_path, "notify", "key", "push.key")
    assert (code, err) == (2, "qts: push.key: File exists; name a new file\n")


def log_of(folder: Path) -> str:
    return (folder / "qts.log").read_text()


@pytest.mark.soak
async def test_a_run_reports_that_it_may_trade(receiver: Receiver, tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "qts",
        "run",
        env={
            **_clean_environ(),
            **INTERPRETED,
            **NO_DASHBOARD,
            "QTS_HOME": str(tmp_path / "home"),
            "QTS_NOTIFY__WEBHOOK__URL": receiver.url,
            "QTS_NOTIFY__WEBHOOK__KEY": "key",
            "QTS_NOTIFY__BATCH_WINDOW_S": "0",
            "QTS_TELEMETRY__LOG_FILE": str(tmp_path / "qts.log"),
        },
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        await receiver.until(1, within_s=40)
        process.send_signal(signal.SIGTERM)
        _, err = await asyncio.wait_for(process.communicate(), 40)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (process.returncode, err) == (0, b"")
    titles = {each["title"] for body in receiver.accepted for each in body["messages"]}
    assert "the account may trade" in titles
    assert "worker started" in log_of(tmp_path)


async def test_config_check_refuses_an_incomplete_channel(tmp_path: Path) -> None:
    (tmp_path / "qts.toml").write_text('[notify.telegram]\nchat = "42"\n')
    code, out, err = await qts(tmp_path, "config", "check", "qts.toml")
    assert (code, out) == (2, "")
    assert err == "qts: notify.telegram.token is not set; notify.telegram.chat needs it\n"
    code, out, _ = await qts(
        tmp_path, "config", "check", "qts.toml", QTS_NOTIFY__TELEGRAM__TOKEN=CANARY
    )
    assert code == 0
    assert out.startswith("OK: ")
