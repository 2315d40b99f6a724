"""Documents name only commands that exist, files that are there, and the alerts of the table."""

from __future__ import annotations

import ast
import functools
import re
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from qts.cli.main import app
from qts.config import load, settings_of
from qts.dashboard import address_of
from qts.dashboard.guard import allowed_hosts
from qts.notify import RULES
from qts.notify.rules import alert_table

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    "operations.md",
    "tutorial.md",
    "live.md",
    "tutorial.ko.md",
    "live.ko.md",
    "brokers.md",
    "README.md",
    "scale.md",
    "dashboard.md",
    "strategy-guide.md",
    "data.md",
)
_INLINE = re.compile(r"`(qts [^`]+)`")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_SETTING = re.compile(r"`((?:[a-z0-9_]+\.)+[a-z0-9_]+)(?: = [^`]*)?`")
_LINK = re.compile(r"\]\(([^)#]+)\)")


def text_of(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def commands(text: str) -> Iterator[str]:
    yield from _INLINE.findall(text)
    for language, block in _BLOCK.findall(text):
        for line in block.splitlines() if not language else ():
            words = line.strip()
            if re.match(r"(?:[A-Z_]+=\S+ )*qts ", words):
                yield words[words.index("qts ") :]


@functools.cache
def root() -> Any:
    """Return the command `qts`; it builds its subcommands when they are looked up."""
    return typer.main.get_command(app)


def wrong(line: str) -> str | None:
    """Why this is no command line of ours; values of options are not looked at."""
    found: Any = root()
    words = shlex.split(line.partition(" > ")[0])[1:]
    while words and hasattr(found, "commands") and words[0] in found.commands:
        found = found.commands[words.pop(0)]
    if hasattr(found, "commands") and words and not words[0].startswith("-"):
        return f"{words[0]} is no command"
    known = {name for option in found.params for name in option.opts + option.secondary_opts}
    unknown = [word for word in words if word.startswith("--") and word not in known]
    return f"{', '.join(unknown)} is no option" if unknown else None


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_command_of_a_document_exists(name: str) -> None:
    lines = list(commands(text_of(name)))
    assert lines or name in ("README.md", "scale.md")
    assert {line: why for line in lines if (why := wrong(line))} == {}


@pytest.mark.parametrize("name", ["live", "tutorial"])
def test_a_translation_has_every_command_and_setting_of_its_original(name: str) -> None:
    original, korean = text_of(f"{name}.md"), text_of(f"{name}.ko.md")
    assert sorted(set(commands(original)) - set(commands(korean))) == []
    assert sorted(set(_SETTING.findall(original)) - set(_SETTING.findall(korean))) == []


# A command in a sentence; names of locks, formats and ids, and Python imports look the same.
_IN_TEXT = re.compile(r"(?<![\w./-])(?<!from )(?<!import )qts((?: (?!qts )[a-z][a-z-]*)+)")
_NO_COMMANDS = {"qts account", "qts dead letter", "qts event", "qts journal", "qts rule"}


def no_such_command(text: str) -> list[str]:
    """Return the commands that a text names and the CLI does not have."""
    found = []
    for words in _IN_TEXT.findall(text):
        command: Any = root()
        for word in words.split():
            if not hasattr(command, "commands"):
                break  # the sentence goes on after the command
            command = command.commands.get(word)
        if command is None and f"qts{words}" not in _NO_COMMANDS:
            found.append(f"qts{words}")
    return found


def texts() -> Iterator[tuple[Path, str]]:
    """Return what a user can read: messages and pages in the source, documents, deploy files."""
    source = ROOT / "src" / "qts"
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield path, node.value
    files = [*source.rglob("*.toml"), *source.rglob("*.js"), *(ROOT / "docs").rglob("*.md")]
    for path in (*files, *(ROOT / "deploy").iterdir(), ROOT / "README.md", ROOT / "CHANGELOG.md"):
        yield path, path.read_text()


def test_every_command_named_in_a_text_exists() -> None:
    wrong_names = {(path.name, each) for path, text in texts() for each in no_such_command(text)}
    assert sorted(wrong_names) == []


def test_every_alert_that_names_a_command_names_one_that_exists() -> None:
    actions = [rule.action for rule in RULES if "qts " in rule.action]
    assert len(actions) >= 5
    assert [each for action in actions for each in no_such_command(action)] == []


def test_a_command_that_is_none_would_be_seen() -> None:
    assert wrong("qts fly") == "fly is no command"
    after_settings = "```toml\na = 1\n```\n\n```\nqts fly\n```\n"
    assert list(commands(after_settings)) == ["qts fly"]
    assert wrong("qts run --faster") == "--faster is no option"
    assert wrong("qts orders list --state UNKNOWN") is None
    assert no_such_command("see qts events status, then qts kill on") == ["qts events status"]
    assert no_such_command("stop with qts kill on and look at qts orders list") == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_setting_of_a_document_exists(name: str) -> None:
    known = {setting.name for setting in settings_of()}
    tables = {setting.rpartition(".")[0] for setting in known}
    rooms = {setting.partition(".")[0] for setting in known}
    named = {each for each in _SETTING.findall(text_of(name)) if each.partition(".")[0] in rooms}
    files = {each for each in named if each.endswith(".json")}
    assert sorted(named - known - tables - files) == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_file_of_a_document_is_there(name: str) -> None:
    text = text_of(name)
    files = set(re.findall(r"`((?:docs|deploy|examples|src)/[\w./-]+)`", text))
    assert sorted(file for file in files if not (ROOT / file).exists()) == []
    links = set(_LINK.findall(text))
    assert sorted(link for link in links if not (ROOT / "docs" / link).exists()) == []


def test_every_document_is_in_the_list() -> None:
    listed = set(_LINK.findall(text_of("README.md")))
    there = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert sorted(there - listed) == []


def test_the_alerts_are_those_of_the_table() -> None:
    shown = text_of("operations.md").partition("<!-- alerts -->\n")[2]
    assert shown.partition("\n<!-- end of alerts -->")[0] == alert_table()


@pytest.mark.parametrize("name", ["tutorial.md", "tutorial.ko.md"])
def test_the_strategy_of_the_tutorial_runs(tmp_path: Path, name: str) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", text_of(name), re.DOTALL)
    file = tmp_path / "mine.py"
    file.write_text(code)
    command = root()
    report = tmp_path / "report.json"
    line = f"backtest {file}:Mine --simulated-day 7 --symbols 20 --seconds 600 --json {report}"
    command.main([*line.split(), "--param", "fall=0.002"], prog_name="qts", standalone_mode=False)
    assert report.exists()


def test_the_compose_file_publishes_nothing_beyond_this_machine() -> None:
    text = (ROOT / "deploy" / "compose.yaml").read_text()
    published = re.findall(r"^ +- ([\d.:]+:\d+)$", text, re.MULTILINE)
    assert published == ["127.0.0.1:8420:8420"]
    assert re.findall(r"(?i)password: *[a-z0-9]+$", text, re.MULTILINE) == []
    for name in re.findall(r"^      (QTS_\w+):", text, re.MULTILINE):
        assert name in {setting.variable for setting in settings_of()}, name


def test_the_image_copies_what_is_there_and_runs_as_an_ordinary_user() -> None:
    text = (ROOT / "deploy" / "Containerfile").read_text()
    build, _, final = text.partition("\nFROM python:3.13-slim\n")
    copied = [line.split()[1:-1] for line in re.findall(r"^COPY .*$", build, re.MULTILINE)]
    assert [name for names in copied for name in names if not (ROOT / name).exists()] == []
    assert re.findall(r"^USER (.*)$", final, re.MULTILINE) == ["qts"]
    assert "0.0.0.0" not in text  # noqa: S104 - nothing listens beyond the loopback
    assert "EXPOSE" not in text
    programs = re.findall(r"^(?:HEALTHCHECK .* )?CMD (\[.*\])$", final, re.MULTILINE)
    health, arguments = map(ast.literal_eval, programs)
    assert wrong(shlex.join(health)) is None
    assert wrong(shlex.join(["qts", *arguments])) is None  # those of the entry point
    compose = (ROOT / "deploy" / "compose.yaml").read_text()
    assert re.findall(r"dockerfile: (.*)$", compose, re.MULTILINE) == ["deploy/Containerfile"]


def test_the_dashboard_of_the_compose_file_answers_to_localhost() -> None:
    text = (ROOT / "deploy" / "compose.yaml").read_text()
    environ = dict(re.findall(r"^      (QTS_DASHBOARD__\w+): (\S+)", text, re.MULTILINE))
    config = load(None, environ).dashboard
    (port,) = re.findall(r"- 127\.0\.0\.1:(\d+):8420$", text, re.MULTILINE)
    assert config.port == 8420
    assert {f"localhost:{port}", f"127.0.0.1:{port}"} <= allowed_hosts(config, config.port)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        bound = listening.getsockname()[1]
        assert address_of(config, listening) == f"http://localhost:{bound}"  # in a login link
