"""Secrets: inline, in files, in the environment; never shown."""

from __future__ import annotations

import json
import logging
import traceback
from pathlib import Path

import msgspec
import pytest

from qts.config import describe, load, render, resolve
from qts.domain import ConfigError, Secret
from tests.config.conftest import Write

CANARY = "c4n4ry-9f27"
DATABASE = f"postgresql://qts:{CANARY}@host/qts"
REDIS = f"redis://:{CANARY}@host/0"


def test_a_secret_never_shows(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    path = write(f'[database]\nurl = "{DATABASE}"\n')
    found = resolve(path, {"REDIS_URL": REDIS})
    assert found.config.database.url == Secret(DATABASE)
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("canary").info("%s %r %s", found, found.config, found.config.cache.url)
    shown = [repr(found), str(found), f"{found.config}", caplog.text]
    shown += [render(found.config, found.origins), json.dumps(describe(found))]
    assert caplog.text
    assert [text for text in shown if CANARY in text] == []
    assert render(found.config, {}).count('url = "***"') == 2


@pytest.mark.parametrize("encode", [msgspec.json.encode, msgspec.to_builtins])
def test_a_config_with_a_secret_cannot_be_encoded_by_accident(encode: object) -> None:
    config = load(None, {"REDIS_URL": REDIS})
    assert callable(encode)
    with pytest.raises(TypeError) as refusal:
        encode(config)
    assert CANARY not in str(refusal.value)


@pytest.mark.parametrize(
    "text",
    [
        f'[database]\nurl = ["{DATABASE}"]',
        f'[database]\nurl = {{ file = "x", value = "{DATABASE}" }}',
        f'[database]\nulr = "{DATABASE}"',
        f'database = "{DATABASE}"',
        f'databse = "{DATABASE}"',
        f'[cache]\nurl = "mysql://u:{CANARY}@host"',
        f'[cache]\npool_max = "{REDIS}"',
        f'[cache]\npool_max = "redis://u:{CANARY}/x@host"',
        f'[telemetry]\nlog_level = "{"x" * 300} {DATABASE}"',
        f'[database]\nurl = "{DATABASE}\n',
        f'[database]\nurl = "{DATABASE}"\npool_max = "x"',
    ],
)
def test_an_error_never_shows_a_secret(write: Write, text: str) -> None:
    path = write(text)
    with pytest.raises(ConfigError) as refusal:
        load(path, {"QTS_DATABSE__URL": DATABASE, "QTS_DATABASE__URL__FILE": "gone"})
    assert CANARY not in str(refusal.value)
    assert CANARY not in "".join(traceback.format_exception(refusal.value))


@pytest.mark.parametrize("mode", [0o644, 0o604])
def test_a_file_with_a_secret_that_everyone_can_read_is_refused(write: Write, mode: int) -> None:
    path = write(f'[cache]\nurl = "{REDIS}"\n', "my settings.toml", mode)
    with pytest.raises(ConfigError) as refusal:
        load(path, {})
    assert str(refusal.value) == (
        f"{path}: contains secrets (cache.url) and everyone can read it; run chmod 600 '{path}'"
    )


def test_everyone_may_read_a_file_without_secrets(write: Write) -> None:
    write(REDIS, "key")
    path = write('[cache]\nurl = { file = "key" }\npool_max = 20\n', mode=0o644)
    assert load(path, {}).cache.pool_max == 20


def test_a_secret_may_be_in_a_separate_file(write: Write, tmp_path: Path) -> None:
    write(f"\n {DATABASE}\n", "keys/database")
    path = write('[database]\nurl = { file = "../keys/database" }\n', "etc/qts.toml")
    assert load(path, {}).database.url == Secret(DATABASE)
    environ = {"QTS_DATABASE__URL__FILE": "keys/database"}
    assert load(None, environ).database.url == Secret(DATABASE)


@pytest.mark.parametrize(
    ("content", "mode", "line"),
    [
        (DATABASE, 0o640, "secret file {key} is accessible to others; run chmod 600 {key}"),
        (DATABASE, 0o604, "secret file {key} is accessible to others; run chmod 600 {key}"),
        (" \n", 0o600, "secret file {key} is empty"),
        (b"\xff", 0o600, "secret file {key} is not UTF-8 text (line 1)"),
        (None, 0, "cannot read secret file {key}: No such file or directory"),
    ],
)
def test_a_bad_secret_file_is_refused(
    write: Write, tmp_path: Path, content: str | bytes | None, mode: int, line: str
) -> None:
    key = tmp_path / "key" if content is None else write(content, "key", mode)
    path = write('[database]\nurl = { file = "key" }\n')
    with pytest.raises(ConfigError) as refusal:
        load(path, {})
    assert str(refusal.value) == f"{path}:2: database.url: {line.format(key=key)}"


def test_a_missing_secret_file_does_not_matter_when_overridden(write: Write) -> None:
    path = write('[database]\nurl = { file = "only-in-production" }\n')
    assert load(path, {"DATABASE_URL": DATABASE}).database.url == Secret(DATABASE)


def test_a_secret_given_twice_is_refused() -> None:
    environ = {"QTS_CACHE__URL": REDIS, "QTS_CACHE__URL__FILE": "key"}
    with pytest.raises(ConfigError) as refusal:
        load(None, environ)
    assert str(refusal.value) == (
        "QTS_CACHE__URL__FILE: QTS_CACHE__URL is set as well; set one of them"
    )
