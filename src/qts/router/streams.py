"""Whether two runs delivered the same: their streams, compared by count and digest."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from qts.domain import RefusedError
from qts.router.report import Stream

_SHOWN = 3


class _Saved(msgspec.Struct):
    streams: tuple[Stream, ...] = ()


def read_streams(path: Path) -> tuple[Stream, ...]:
    """The streams of a report that was written with --json."""
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=_Saved)
    except OSError as error:
        raise RefusedError(f"cannot read report {path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RefusedError(f"{path} is not a report: {error}") from None
    if not saved.streams:
        raise RefusedError(f"report {path} holds no streams; expected that of a run with --journal")
    return saved.streams


def differences(expected: Iterable[Stream], actual: Iterable[Stream]) -> list[str]:
    """One line for each stream that is not the same, but no more than a few."""
    before, after = _by_way(expected), _by_way(actual)
    lines = [
        f"strategy {way[0]}, producer {way[1]}, type {way[2]}:"
        f" {_shown(after.get(way))}, expected {_shown(before.get(way))}"
        for way in sorted(before.keys() | after.keys())
        if before.get(way) != after.get(way)
    ]
    more = [f"and {len(lines) - _SHOWN:,} streams more"] if len(lines) > _SHOWN else []
    return lines[:_SHOWN] + more


def _by_way(streams: Iterable[Stream]) -> dict[tuple[int, int, int], Stream]:
    return {(each.strategy, each.producer, each.msg_type): each for each in streams}


def _shown(stream: Stream | None) -> str:
    return f"{stream.delivered:,} messages ({stream.digest})" if stream else "nothing"
