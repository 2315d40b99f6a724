"""Spans of time as people write them: 500ms, 5s, 2m, 1h."""

from __future__ import annotations

import re

from qts.domain.errors import Refused

_SECONDS = {"ms": (1, 1000), "s": (1, 1), "m": (60, 1), "h": (3600, 1), "d": (86400, 1)}
_FORM = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?", re.ASCII)


def parse_duration(text: str) -> float:
    """Seconds of a text such as `90s`; a bare number is seconds.

    >>> parse_duration("500ms"), parse_duration("2m"), parse_duration("5")
    (0.5, 120.0, 5.0)
    """
    found = _FORM.fullmatch(text.strip())
    seconds = 0.0
    if found:
        times, divided = _SECONDS[found[2] or "s"]
        seconds = float(found[1]) * times / divided  # divided: 0.001 is not exact, 1000 is
    if not 0 < seconds < float("inf"):
        raise Refused(
            f"{text!r} is not a duration; write a positive number and ms, s, m, h or d, as in 90s"
        )
    return seconds
