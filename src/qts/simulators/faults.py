"""Faults on demand: kind, path and frequency."""

from __future__ import annotations

import random
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Kind = Literal[
    "limit",  # rate-limited below the limit
    "error",  # not executed, HTTP 500
    "drop_request",  # not executed, the connection closes
    "drop_reply",  # executed, the connection closes
    "unknown",  # executed, the reply says unknown outcome (KIS EGW00301; Upbit 500)
    "slow",  # executed, the reply is late
    "cut",  # executed, the reply is cut in half
    "duplicate_fills",  # fill messages are sent twice
    "reorder_fills",  # fill messages are sent in the wrong order
    "lose_fills",  # fill messages are not sent
    "width",  # records of a stream have additional fields
]
BEFORE: frozenset[Kind] = frozenset({"limit", "error", "drop_request"})
AFTER: frozenset[Kind] = frozenset({"drop_reply", "unknown", "slow", "cut"})


class Fault(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One fault; `path` is a prefix of a request's path or, for streams, a tr_id."""

    kind: Kind
    path: str = ""
    method: str = ""
    count: Annotated[int, Meta(ge=1)] | None = None
    """How often it applies; unset: until it is cleared."""
    chance: Annotated[float, Meta(gt=0, le=1)] = 1.0
    code: str = ""
    """Error code of the venue, such as EGW00215."""
    seconds: Annotated[float, Meta(ge=0)] = 1.0
    fields: Annotated[int, Meta(ge=-10, le=10)] = 1
    struck: int = 0

    def matches(self, path: str, method: str) -> bool:
        return path.startswith(self.path) and self.method in ("", method)


class FaultInjector:
    def __init__(self, seed: int) -> None:
        self._faults: list[Fault] = []
        self._random = random.Random(seed)  # noqa: S311 - reproducible on purpose

    def add(self, fault: Fault) -> None:
        self._faults.append(fault)

    def clear(self) -> None:
        self._faults.clear()

    def listed(self) -> list[Fault]:
        return list(self._faults)

    def take(self, kinds: frozenset[Kind], path: str, method: str = "") -> Fault | None:
        """Return the first fault of these kinds that applies now, and count it."""
        for fault in self._faults:
            if fault.kind not in kinds or not fault.matches(path, method):
                continue
            if fault.count is not None and fault.struck >= fault.count:
                continue
            if fault.chance < 1 and self._random.random() >= fault.chance:
                continue
            fault.struck += 1
            return fault
        return None

    def at_random(self, share: float) -> bool:
        return share > 0 and self._random.random() < share
