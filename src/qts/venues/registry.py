"""Names of the venues: those of QTS, and those of installed packages.

A package offers a venue as an entry point of the group `qts.venues`. Reading the names imports
nothing; a venue is imported when it is chosen.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points

from qts.domain import Market, RefusedError, check_name, name_choices
from qts.venues.config import VenuesConfig

GROUP = "qts.venues"
# Adapters are classes of the composition root, which this package cannot import.
BUILT_IN = {"kis": "qts.app.kis_venue:KisVenue", "upbit": "qts.app.upbit_venue:UpbitVenue"}
_MARKETS = {"kis": Market.KRX, "upbit": Market.UPBIT}
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", re.ASCII)  # a key of the settings
_RESERVED = {"paper", *(each.lower() for each in Market), *VenuesConfig.__struct_fields__}


def venue_names() -> tuple[str, ...]:
    """Return the names of all venues that can be chosen."""
    return (*BUILT_IN, *dict.fromkeys(each.name for each in _entry_points()))


def market_of_venue(name: str) -> Market | str:
    """Return the market by which bars are kept: KRX for kis, the name of a venue of others."""
    name = name.lower()
    markets = {each.lower(): each for each in Market if each is not Market.OTHER} | _MARKETS
    if name not in markets:
        check_name("venue", name, (*(markets.keys() - BUILT_IN.keys()), *venue_names()))
    return markets.get(name, name)


def is_venue(name: str) -> bool:
    return name in BUILT_IN or any(each.name == name for each in _entry_points())


def check_venue_names(setting: str, names: Sequence[str], *others: str) -> None:
    """Raise ValueError unless every name is known, and each is there once; `others` are too."""
    if not names:
        raise ValueError(f"{setting} is empty; expected {' or '.join((*others, *venue_names()))}")
    for name in names:
        if name not in others and not is_venue(name):
            known = (*others, *venue_names())
            raise ValueError(f'{setting} = "{name}": expected one of {name_choices(name, known)}')
        if names.count(name) > 1:
            raise ValueError(f'{setting} names "{name}" twice; expected each once')


@functools.cache
def load_venue(name: str) -> object:
    """Import and create the venue of a name; raise RefusedError if that cannot be done."""
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        return getattr(importlib.import_module(module), attribute)()
    check_name("venue", name, venue_names())
    found = [each for each in _entry_points() if each.name == name]
    if len(found) > 1:
        packages = " and ".join(sorted(map(_package, found)))
        raise RefusedError(f'venue "{name}" is offered by {packages}; uninstall one of them')
    (entry,) = found
    try:
        return entry.load()()
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise RefusedError(f"{describe_venue(name)} does not load: {reason}") from error


def describe_venue(name: str) -> str:
    """Return the venue with its package and entry point, for an error."""
    for entry in _entry_points():
        if entry.name == name:
            return f'venue "{name}" of {_package(entry)} (entry point {name} = "{entry.value}")'
    return f'venue "{name}"'


def _entry_points() -> list[EntryPoint]:
    """Return the entry points of others; a name that is ours or no key of settings is not one."""
    found = entry_points(group=GROUP)
    return [each for each in found if _NAME.fullmatch(each.name) and each.name not in _RESERVED]


def _package(entry: EntryPoint) -> str:
    dist = entry.dist
    return f"package {dist.name} {dist.version}" if dist is not None else "a package without a name"
