"""Changes of a settings file: the keys are set, and nothing else is touched."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.config import with_keys
from qts.domain import ConfigError

VALUES = {"app_key": '{ file = "/home/secrets/kis-app_key" }', "paper": "false"}
SET = {"app_key": {"file": "/home/secrets/kis-app_key"}, "paper": False}
LINES = [
    "# a comment with app_key = 1",
    "paper = true",
    'app_key = "in the open"  # old',
    'hts_id = "me"',
    'note = """\napp_key = 1\n[feed]\n"""',
    "limits.per_second = 4",
]
HEADERS = ["", "[feed]", "[venues.kis]", "[ venues.kis ]  # mine", "[venues.upbit]", "[venues]"]
SECTIONS = st.lists(
    st.tuples(st.sampled_from(HEADERS), st.lists(st.sampled_from(LINES), unique=True)),
    unique_by=lambda section: section[0],
)


def test_a_missing_file_gets_the_table(tmp_path: Path) -> None:
    text = with_keys(tmp_path / "qts.toml", "venues.kis", VALUES)
    assert tomllib.loads(text) == {"venues": {"kis": SET}}


def test_everything_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "qts.toml"
    path.write_text(
        '# mine\n[venues.kis]\npaper = true  # why\nhts_id = "me"\n\n[feed]\nvenue = "kis"\n'
    )
    assert with_keys(path, "venues.kis", VALUES) == (
        "# mine\n[venues.kis]\n"
        'app_key = { file = "/home/secrets/kis-app_key" }\npaper = false\nhts_id = "me"\n'
        '\n[feed]\nvenue = "kis"\n'
    )


@pytest.mark.parametrize(
    "text", ['venues.kis.hts_id = "me"\n', 'venues = { kis = { hts_id = "me" } }\n', "venues = 1\n"]
)
def test_a_table_in_another_form_is_refused_with_what_to_write(tmp_path: Path, text: str) -> None:
    path = tmp_path / "qts.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="cannot be changed line by line; write there: app_key"):
        with_keys(path, "venues.kis", VALUES)


@given(sections=SECTIONS)
def test_the_result_is_the_file_with_the_keys_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, sections: list[tuple[str, list[str]]]
) -> None:
    text = "\n".join(line for header, lines in sections for line in (header, *lines)) + "\n"
    try:
        expected = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    path = tmp_path_factory.mktemp("edit") / "qts.toml"
    path.write_text(text)
    try:
        after = with_keys(path, "venues.kis", VALUES)
    except ConfigError:
        return
    expected.setdefault("venues", {}).setdefault("kis", {}).update(SET)
    assert tomllib.loads(after) == expected
