"""Spans of time as people write them: 500ms, 5s, 2m, 1h."""

from __future__ import annotations

import re

from qts.domain.errors import Refused

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_FORM = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?", re.ASCII)


def parse_duration(text: str) -> float:
    """Seconds of a text such as `90s`; a bare number is seconds.

    >>> parse_duration("500ms"), parse_duration("2m"), parse_duration("5")
    (0.5, 120.0, 5.0)
    """
    found = _FORM.fullmatch(text.strip())
    seconds = float(found[1]) * _SECONDS[found[2] or "s"] if found else 0.0
    if not 0 < seconds < float("inf"):
        raise Refused(f"{text!r} is not a duration; write a positive number and ms, s, m, h or d, as in 90s")
    return seconds
