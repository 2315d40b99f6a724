"""Venues of packages: found by name, imported when chosen, refused in one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qts.brokers import venue_of, venue_settings
from qts.config import load, render, resolve
from qts.domain import ConfigError, RefusedError
from qts.venues import check_venue_names, load_venue, market_of_venue, venue_names
from tests.venues.packages import install, install_example


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for packages, in front of those that are installed."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    load_venue.cache_clear()
    yield folder
    load_venue.cache_clear()
    for name in [name for name in sys.modules if name.startswith(("memory_venue", "planted"))]:
        del sys.modules[name]


def plant(site: Path, code: str, name: str = "planted") -> None:
    """Install a package whose venue is the class `Planted` of the given code."""
    install(site, f"qts-{name}", "2.5", {name: "planted:Planted"})
    (site / "planted.py").write_text(code)


def test_a_venue_of_a_package_is_known_by_name_without_being_imported(site: Path) -> None:
    plant(site, "raise SystemError('must not be imported')")
    assert venue_names() == ("kis", "upbit", "planted")
    assert market_of_venue("planted") == "planted"
    check_venue_names("venue", ("planted", "kis"))
    with pytest.raises(ValueError, match="one of kis, upbit, planted; did you mean planted"):
        check_venue_names("venue", ("plantde",))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import a_library_that_is_missing", "does not load: ModuleNotFoundError: No module"),
        ("class Other: pass", "does not load: AttributeError: "),
        ("def Planted(: pass", "does not load: SyntaxError: "),
        ("class Planted:\n    def __init__(self, url): pass", "does not load: TypeError: "),
        ("class Planted:\n    name = 'planted'", "does not fit: it lacks account, calendar"),
    ],
)
def test_a_package_that_does_not_load_is_one_line_with_its_entry_point(
    site: Path, code: str, reason: str
) -> None:
    plant(site, code)
    with pytest.raises(RefusedError) as refused:
        venue_of("planted")
    where = 'venue "planted" of package qts-planted 2.5 (entry point planted = "planted:Planted")'
    assert str(refused.value).startswith(f"{where} {reason}")
    assert "\n" not in str(refused.value)


def test_a_package_matters_only_where_its_venue_is_chosen(site: Path, tmp_path: Path) -> None:
    plant(site, "import a_library_that_is_missing")
    file = tmp_path / "qts.toml"
    file.write_text("[venues.planted]\nkey = 1\n")
    environ = {"QTS_VENUES__PLANTED__OTHER": "2"}
    assert load(file, environ).feed.venues == ("kis",)
    for chosen in ({"QTS_FEED__VENUE": "kis,planted"}, {"QTS_BROKERS__BROKER": "planted"}):
        with pytest.raises(ConfigError, match="a_library_that_is_missing") as refused:
            load(file, environ | chosen)
        assert "\n" not in str(refused.value)


def test_two_packages_with_one_venue_are_refused(site: Path) -> None:
    install(site, "one", "1", {"planted": "planted:Planted"})
    install(site, "two", "1", {"planted": "planted:Planted"})
    with pytest.raises(RefusedError, match="offered by package one 1 and package two 1"):
        venue_of("planted")


@pytest.mark.parametrize("name", ["kis", "upbit", "paper", "max_skew_s", "My-Venue", "krx"])
def test_names_of_ours_and_names_that_are_no_keys_are_not_taken(site: Path, name: str) -> None:
    install(site, "qts-thief", "1", {name: "planted:Planted"})
    assert venue_names() == ("kis", "upbit")


@pytest.mark.parametrize(
    "settings",
    ["dict", "1", "type('S', (msgspec.Struct,), {})", "msgspec.defstruct('S', ['a'], frozen=True)"],
)
def test_settings_that_are_no_frozen_struct_with_defaults_are_refused(
    site: Path, settings: str
) -> None:
    parts = "title symbol_form has_indices simulator environment account instruments calendar"
    parts += " limits history connect"
    lines = [f"    {part} = None" for part in parts.split()]
    code = ["import msgspec", "class Planted:", "    name = 'planted'", *lines]
    plant(site, "\n".join([*code, f"    settings = {settings}"]))
    with pytest.raises(RefusedError, match=r"expected a msgspec\.Struct that is frozen"):
        venue_of("planted")


def test_the_table_of_a_venue_works_as_ours_do(site: Path, tmp_path: Path) -> None:
    install_example(site)
    file = tmp_path / "qts.toml"
    file.write_text("[feed]\nvenue = ['memory']\n[venues.memory]\ncash = 5\n")
    environ = {"QTS_VENUES__MEMORY__ACCOUNT": "second"}
    found = resolve(file, environ)
    venue = venue_of("memory")
    settings = venue_settings(found.config.venues, venue)
    assert (settings.cash, settings.account, settings.office_hours) == (5, "second", False)
    assert venue_settings(load(None, {}).venues, venue) == venue.settings()
    text = render(found.config, found.origins)
    assert '[venues.memory]\naccount = "second"  # environment, QTS_VENUES' in text
    assert f"cash = 5  # file, {file}:4" in text


@pytest.mark.parametrize(
    ("text", "environ", "problem"),
    [
        ("csah = 5", {}, "unknown key venues.memory.csah; did you mean venues.memory.cash?"),
        ("cash = -5", {}, "venues.memory.cash = -5: expected"),
        ("cash = 5", {"QTS_VENUES__MEMORY__CASH": "lots"}, 'venues.memory.cash = "lots": expected'),
        ("", {"QTS_VENUES__MEMORY__CSAH": "1"}, "did you mean QTS_VENUES__MEMORY__CASH?"),
    ],
)
def test_errors_in_the_table_of_a_venue_name_the_key(
    site: Path, tmp_path: Path, text: str, environ: dict[str, str], problem: str
) -> None:
    install_example(site)
    file = tmp_path / "qts.toml"
    file.write_text(f"[feed]\nvenue = 'memory'\n[venues.memory]\n{text}\n")
    with pytest.raises(ConfigError) as refused:
        load(file, environ)
    assert problem in str(refused.value)
