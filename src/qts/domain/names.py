"""Names that a user types: the nearest existing one, and the refusal of an unknown one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from qts.domain.errors import RefusedError

_SHOWN = 12


def nearest_name(given: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name most similar to `given`, ignoring case, or None.

    >>> nearest_name("papre", ["paper", "kis", "upbit"])
    'paper'
    """
    folded = {name.lower(): name for name in known}
    close = get_close_matches(given.lower(), folded, 1, cutoff)
    return folded[close[0]] if close else None


def name_choices(given: str, known: Iterable[str]) -> str:
    """Return the known names, a dozen at most, and the one most similar to `given`.

    >>> name_choices("papre", ["paper", "kis", "upbit"])
    'paper, kis, upbit; did you mean paper?'
    """
    names = list(known)
    shown = ", ".join(names[:_SHOWN]) or "none"
    if len(names) > _SHOWN:
        shown += f" and {len(names) - _SHOWN} more"
    near = nearest_name(given, names)
    return f"{shown}; did you mean {near}?" if near else shown


def check_name(kind: str, given: str, known: Iterable[str]) -> None:
    """Raise RefusedError with the known names unless `given` is one of them."""
    names = list(known)
    if given in names:
        return
    expected = f"expected one of {name_choices(given, names)}" if names else "none is known"
    raise RefusedError(f"{kind} {given!r} is unknown; {expected}")
