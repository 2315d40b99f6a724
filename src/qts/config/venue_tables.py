"""Tables of venues that packages add: [venues.NAME], declared by the venue's own struct.

A venue that the settings choose or have a table of is imported; one that does not load is a problem
only where it is chosen, and its table is skipped otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, cast

import msgspec

from qts.brokers import venue_of
from qts.domain import RefusedError, split_names
from qts.venues import BUILT_IN, VenuesConfig, is_venue

_CHOICES = (("feed", "venue"), ("brokers", "broker"))
_PREFIX = "QTS_VENUES__"


def venue_tables(
    values: Mapping[str, Any], environ: Mapping[str, str], problems: list[str]
) -> tuple[type[VenuesConfig], list[str]]:
    """Return the struct of [venues] for these settings, and the names whose tables are skipped."""
    chosen = set(_chosen(values, environ))
    found, skipped = [], []
    for name in sorted(chosen | set(_tables(values, environ))):
        if name in BUILT_IN or not is_venue(name):
            continue  # its key is ours, or unknown
        try:
            venue_of(name)
            found.append(name)
        except RefusedError as error:
            skipped.append(name)
            if name in chosen:
                problems.append(str(error))
    return venues_struct(tuple(found)), skipped


@cache
def venues_struct(names: tuple[str, ...]) -> type[VenuesConfig]:
    """Return VenuesConfig with the tables of these venues too."""
    if not names:
        return VenuesConfig
    venues = [venue_of(name) for name in names]
    fields = [
        (each.name, Annotated[each.settings, msgspec.Meta(description=each.title)], each.settings())
        for each in venues
    ]
    struct: Any = msgspec.defstruct(
        "VenuesConfig",
        fields,
        bases=(VenuesConfig,),
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )
    return cast(type[VenuesConfig], struct)


def _chosen(values: Mapping[str, Any], environ: Mapping[str, str]) -> Iterator[str]:
    for table, key in _CHOICES:
        given: Any = environ.get(f"QTS_{table}__{key}".upper())
        if given is None and isinstance(values.get(table), dict):
            given = values[table].get(key)
        names = given if isinstance(given, list) else [given]
        for each in names:
            yield from split_names(each) if isinstance(each, str) else ()


def _tables(values: Mapping[str, Any], environ: Mapping[str, str]) -> Iterable[str]:
    tables = values.get("venues")
    yield from tables if isinstance(tables, dict) else ()
    for name in environ:
        if name.startswith(_PREFIX):
            yield name.removeprefix(_PREFIX).lower().partition("__")[0]
