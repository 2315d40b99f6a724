"""Transcripts of rehearsals, and the rule that live trading needs one.

    QTS_HOME/rehearsals/kis-20261117T003000Z-1a2b3c4d.jsonl, mode 0600
      {"kind": "start", ...}    venue, environment, account, digest of the key, QTS version
      {"kind": "step", ...}     what was requested, what the venue answered, verdict
      {"kind": "end", ...}      complete or not, and why not

A file without its end is of a rehearsal that was killed. No text in it contains a secret of the
venue's settings.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import msgspec

from qts.brokers.config import BrokersConfig
from qts.brokers.venue import Venue
from qts.domain import OperationError, RefusedError, Secret

MAX_AGE = timedelta(days=30)
_AHEAD = timedelta(days=1)  # by which a clock may have been set back since
_SHORTEST_MASKED = 4  # shorter secrets would mask ordinary words

Verdict = Literal["ok", "skipped", "failed"]
_Time = Annotated[datetime, msgspec.Meta(tz=True)]


class RehearsalStart(msgspec.Struct, frozen=True, tag="start", tag_field="kind", kw_only=True):
    """First line of a transcript; `key` and `account` are digests."""

    at: _Time
    version: str
    venue: str
    environment: str
    account: str
    key: str
    symbol: str
    fill: bool


class RehearsalStep(msgspec.Struct, frozen=True, tag="step", tag_field="kind", kw_only=True):
    """One step: what was requested and answered."""

    at: _Time
    step: str
    request: str
    answer: str
    verdict: Verdict


class RehearsalEnd(msgspec.Struct, frozen=True, tag="end", tag_field="kind", kw_only=True):
    """Last line of a transcript; `reason` says why it is not complete."""

    at: _Time
    complete: bool
    reason: str = ""


_Line = RehearsalStart | RehearsalStep | RehearsalEnd


class Transcript:
    """File of one rehearsal, written line by line; a context manager."""

    def __init__(self, folder: Path, start: RehearsalStart) -> None:
        at = start.at.astimezone(UTC)
        self.path = folder / f"{start.venue}-{at:%Y%m%dT%H%M%SZ}-{os.urandom(4).hex()}.jsonl"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            self._file = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise OperationError(f"cannot write {self.path}: {error.strerror}") from None
        self.add(start)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def add(self, line: _Line) -> None:
        """Write a line to the disk."""
        os.write(self._file, msgspec.json.encode(line) + b"\n")
        os.fsync(self._file)


class _Rehearsal(NamedTuple):
    start: RehearsalStart
    end: RehearsalEnd | None


def require_rehearsal(
    config: BrokersConfig,
    venue: Venue[Any],
    settings: msgspec.Struct,
    folder: Path,
    now: datetime,
    version: str,
) -> None:
    """Raise RefusedError for live trading without a recent rehearsal of this key and version."""
    if config.mode != "live" or config.live_unrehearsed:
        return
    environment = venue.environment(settings)
    key = key_digest(venue, settings)
    conditions: tuple[tuple[Callable[[_Rehearsal], bool], str], ...] = (
        (lambda each: each.start.venue == venue.name, "it has no rehearsal in this home"),
        (lambda each: each.start.environment == environment, f"none was at the {environment} host"),
        (lambda each: each.start.key == key, "none was with this key"),
        (lambda each: each.start.version == version, f"none was with QTS {version}"),
        (lambda each: each.end is not None and each.end.complete, "none was complete"),
        (lambda each: -_AHEAD <= now - each.start.at <= MAX_AGE, "the last is over 30 days old"),
    )
    found = list(_rehearsals(folder))
    for holds, reason in conditions:
        found = [each for each in found if holds(each)]
        if not found:
            raise RefusedError(
                f'brokers.mode is "live", and {venue.title} is not rehearsed: {reason}; run'
                f" qts rehearse {venue.name}, or set brokers.live_unrehearsed = true"
            )


def key_digest(venue: Venue[Any], settings: msgspec.Struct) -> str:
    """Return what identifies the key of a venue without revealing it."""
    parts = [venue.name, venue.environment(settings)]
    parts += [f"{name}={secret.reveal()}" for name, secret in _named_secrets(settings)]
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:16]


def mask_secrets(text: str, settings: msgspec.Struct) -> str:
    """Replace every secret of the settings in a text by three stars."""
    values = {secret.reveal() for _, secret in _named_secrets(settings)}
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= _SHORTEST_MASKED:
            text = text.replace(value, str(Secret("")))
    return text


def _named_secrets(settings: msgspec.Struct) -> Iterator[tuple[str, Secret]]:
    for name in settings.__struct_fields__:
        if isinstance(value := getattr(settings, name), Secret):
            yield name, value


def _rehearsals(folder: Path) -> Iterator[_Rehearsal]:
    """Yield what the transcripts of a folder say; skip what is none."""
    for path in sorted(folder.glob("*.jsonl")):
        lines = list(_lines(path))
        if lines and isinstance(start := lines[0], RehearsalStart):
            last = lines[-1]
            yield _Rehearsal(start, last if isinstance(last, RehearsalEnd) else None)


def _lines(path: Path) -> Iterator[_Line]:
    try:
        for line in path.read_bytes().splitlines():
            yield msgspec.json.decode(line, type=_Line)
    except (OSError, msgspec.DecodeError):
        return  # torn by a kill: what came before counts, and an end is missing
