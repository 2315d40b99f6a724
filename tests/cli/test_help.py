"""Help pages: every command, new or old name, has a plain page with an example."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from qts.cli.groups import Entry, summary
from qts.cli.main import COMMANDS, app, run_command

HEAVY = (
    *("numpy", "aiohttp", "redis", "asyncpg", "numba", "cryptography", "prometheus_client"),
    *("uvloop", "structlog", "rich", "optuna"),
)
OLD_NAMES = """
    observe, replay, export, outbox status, outbox bench, outbox relay, dead-letters list,
    cache get,
    database migrate, notify test, metrics rules, backup, restore, backtests list, backtests show,
    backtests work, simulate kis, simulate upbit, route, distributed source, distributed sink,
    events demo, verify isolation, verify trading, verify dashboard, retrace, bench
"""
NEW_NAMES = """
    data observe, data replay, data export, ops outbox status, ops dead-letters list, ops degrade,
    ops cache get,
    ops database migrate, ops notify test, ops metrics rules, ops backup, ops restore,
    ops jobs list, ops jobs show, ops jobs work, dev simulate kis, dev simulate upbit,
    dev router run, dev router source, dev router sink, dev lanes, dev verify isolation,
    dev verify latency, dev verify dashboard, dev verify outbox, dev verify decisions, dev bench
"""


def names(text: str) -> list[str]:
    return [" ".join(name.split()) for name in text.split(",")]


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from walk(each, (*path, name))


PAGES = dict(walk(typer.main.get_command(app)))


def page(*path: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "qts", *path, "--help"], capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.parametrize("path", PAGES, ids=" ".join)
def test_every_page_is_plain_and_has_an_example(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command([*path, "--help"]) == 0
    shown, errors = capsys.readouterr()
    assert errors == ""
    assert re.search(r"^ +Example: (\w+=\S+ )?qts ", shown, re.MULTILINE)
    assert not set("{}<>") & set(shown.partition("\n")[0])
    assert re.findall(r"<\w[^>]*>|<=x|\.\.\.$", shown.replace("[ARGS]...", ""), re.MULTILINE) == []


@pytest.mark.parametrize("path", PAGES, ids=" ".join)
def test_every_example_is_a_command_under_its_new_name(path: tuple[str, ...]) -> None:
    command = PAGES[path]
    example = re.search(r"Example: (?:\w+=\S+ )?qts (.+)", f"{command.help}\n{command.epilog}")
    assert example
    words, found = example[1].split(), PAGES[()]
    while words and words[0] in getattr(found, "commands", {}):
        found = found.commands[words.pop(0)]
        assert not found.hidden, f"{example[0]}: {found.name} is an old name"
    known = {name for option in found.params for name in option.opts}
    given = [word for word in words if word.startswith("--")]
    assert sorted(set(given) - known) == []
    assert "--for" not in given


@pytest.mark.parametrize("name", names(NEW_NAMES) + names(OLD_NAMES))
def test_a_name_is_there(name: str) -> None:
    assert tuple(name.split()) in PAGES


def test_old_names_are_not_listed() -> None:
    listed = re.findall(r"^  ([a-z][\w-]*) ", page(), re.MULTILINE)
    assert listed == [
        *("run", "backtest", "optimise", "orders", "positions", "kill", "failsafe", "top"),
        *("dashboard", "report", "explain", "config", "doctor", "setup", "rehearse", "data"),
        *("ops", "dev"),
    ]
    assert "bench" not in page("ops", "outbox")


def entries(table: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Entry]]:
    for name, entry in table.items():
        yield (*path, name), entry
        if not isinstance(entry.target, str):
            yield from entries(entry.target, (*path, name))


@pytest.mark.parametrize(
    ("path", "entry"),
    [
        pytest.param(path, entry, id=" ".join(path))
        for path, entry in entries(COMMANDS)
        if entry.help
    ],
)
def test_the_table_has_the_help_of_the_command(path: tuple[str, ...], entry: Entry) -> None:
    assert summary(PAGES[path]) == entry.help


@pytest.mark.parametrize("alias", ["--duration", "--for"])
@pytest.mark.parametrize(
    "path", [path for path, command in PAGES.items() if {"--for", "--duration"} & {
        name for option in command.params for name in option.opts
    }], ids=" ".join
)  # fmt: skip
def test_duration_and_for_are_one_option(path: tuple[str, ...], alias: str) -> None:
    (option,) = [option for option in PAGES[path].params if alias in option.opts]
    assert option.opts == ["--duration", "--for"]


def test_a_group_without_a_command_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["orders"]) == 2
    shown, errors = capsys.readouterr()
    assert ("Usage: qts orders" in shown, errors) == (True, "")


def test_a_wrong_name_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["ordesr"]) == 2
    assert "Did you mean 'orders'" in capsys.readouterr().err


def test_a_wrong_choice_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", "--role", "fee"]) == 2
    assert capsys.readouterr().err == (
        "qts: Invalid value for '--role': 'fee' is not one of 'all', 'feed', 'strategies', "
        "'execution'; did you mean feed? (see 'qts run --help')\n"
    )
    assert run_command(["run", "--role", "zzzz"]) == 2
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["import qts", "main([])", "main(['--help'])", "main(['orders', 'list', '--help'])"]
)
def test_heavy_packages_are_not_loaded(command: str) -> None:
    code = f"""
import sys
from qts.cli import main
try:
    {command}
except SystemExit:
    pass
print(*sorted({{name.split(".")[0] for name in sys.modules}}), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert sorted(set(HEAVY) & set(done.stderr.split())) == []
    assert "typer" in done.stderr.split()
