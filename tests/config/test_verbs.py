"""The commands `qts config check`, `show` and `init`."""

from __future__ import annotations

import json
import re
import stat
import tomllib
from pathlib import Path

import pytest

from qts.cli.main import run_command
from qts.config import Config, load, render_template, resolve, settings_of
from tests.config.conftest import Write, ordinary_user

CANARY = "c4n4ry-9f27"


def test_check_counts_what_is_set(
    write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write("[cache]\npool_max = 20\nsocket_timeout_ms = 5\n")
    monkeypatch.setenv("QTS_CACHE__POOL_MAX", "30")
    monkeypatch.setenv("REDIS_URL", "redis://host")
    assert run_command(["config", "check"]) == 0
    assert capsys.readouterr().out == "OK: qts.toml, 2 settings, 2 overridden by the environment\n"


def test_check_without_a_file_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["config", "check"]) == 0
    expected = "OK: no settings file, 0 settings, 0 overridden by the environment\n"
    assert capsys.readouterr().out == expected


def test_check_reports_every_problem_and_refuses(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write("[cache]\npool_max = 1\npol = 2\n", "bad.toml")
    assert run_command(["config", "check", "bad.toml"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sorted(re.findall(r"bad\.toml:\d", err)) == ["bad.toml:2", "bad.toml:3"]
    assert "Traceback" not in err


def test_show_says_where_each_came_from(
    write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(f'[cache]\nurl = "redis://:{CANARY}@host"\npool_max = 20\n', "my.toml")
    monkeypatch.setenv("QTS_EVENTS__P0__QUEUE_SIZE", "50")
    assert run_command(["config", "show", "-c", "my.toml"]) == 0
    out = capsys.readouterr().out
    assert "queue_size = 50  # environment, QTS_EVENTS__P0__QUEUE_SIZE\n" in out
    assert "pool_max = 20  # file, my.toml:3\n" in out
    assert 'url = "***"  # file, my.toml:2\n' in out
    assert 'log_level = "info"  # default\n' in out
    assert CANARY not in out
    assert tomllib.loads(out)["cache"]["pool_max"] == 20


def test_show_json_names_every_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REDIS_URL", f"redis://:{CANARY}@host")
    monkeypatch.setenv("QTS_HOME", "/var/lib/qts")
    assert run_command(["config", "show", "--json"]) == 0
    out = capsys.readouterr().out
    shown = json.loads(out)
    assert shown["file"] is None
    assert list(shown["settings"]) == [setting.name for setting in settings_of()]
    assert shown["settings"]["cache.url"] == {
        "value": "***",
        "from": "environment",
        "where": "REDIS_URL",
    }
    assert shown["settings"]["home"]["value"] == "/var/lib/qts"
    assert shown["settings"]["database.url"] == {"value": None, "from": "default", "where": None}
    assert CANARY not in out


def test_init_writes_a_private_file_that_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["config", "init"]) == 0
    assert capsys.readouterr().out == "Wrote qts.toml\n"
    path = tmp_path / "qts.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == render_template()
    assert [entry.name for entry in tmp_path.iterdir()] == ["qts.toml"]
    found = resolve(None, {})
    assert (found.config, found.written) == (Config(), 0)


def test_the_written_file_loads_when_every_line_is_uncommented(write: Write) -> None:
    path = write(re.sub(r"^#", "", render_template(), flags=re.MULTILINE))
    found = resolve(path, {})
    assert found.config == Config()
    with_default = [setting.name for setting in settings_of() if setting.default is not None]
    assert list(found.origins) == with_default


def test_the_written_file_explains_every_setting() -> None:
    text = render_template()
    for setting in settings_of():
        assert setting.description, f"{setting.name} has no description"
        assert f"## {setting.path[-1]}: {setting.description} ({setting.allowed})\n" in text


def test_a_setting_uncommented_alone_lands_in_its_table(write: Write) -> None:
    path = write(render_template().replace("#socket_timeout_ms = 100", "socket_timeout_ms = 7"))
    assert load(path, {}).cache.socket_timeout_ms == 7


def test_init_does_not_overwrite(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write("# mine\n")
    assert run_command(["config", "init"]) == 2
    assert "qts.toml exists; give another path, or --force to replace it" in capsys.readouterr().err
    assert path.read_text() == "# mine\n"
    assert [entry.name for entry in path.parent.iterdir()] == ["qts.toml"]


def test_init_force_replaces_and_tightens(write: Write) -> None:
    path = write("# mine\n", mode=0o644)
    assert run_command(["config", "init", "--force"]) == 0
    assert path.read_text() == render_template()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("arguments", [["gone/qts.toml"], [".", "--force"], ["file/qts.toml"]])
def test_init_where_no_file_can_be_is_refused(
    write: Write, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write("", "file")
    assert run_command(["config", "init", *arguments]) == 2
    assert f"cannot write {arguments[0]}: " in capsys.readouterr().err


def test_init_without_permission_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with ordinary_user():
        code = run_command(["config", "init", str(tmp_path / "closed" / "qts.toml")])
    assert code == 2
    assert "Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["check", "show", "init"])
def test_help_has_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["config", verb, "--help"]) == 0
    assert f"Example: qts config {verb}" in capsys.readouterr().out
