"""Faults on demand: what goes wrong, on which path, how often."""

from __future__ import annotations

import random
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Kind = Literal[
    "limit",  # refused below the limit, as the venue refuses
    "error",  # an HTTP 500, nothing was done
    "drop_request",  # the connection ends, nothing was done
    "drop_reply",  # it was done, the connection ends
    "unknown",  # it was done, the venue says it does not know (KIS EGW00301; Upbit 500)
    "slow",  # it was done, the reply comes late
    "cut",  # it was done, the reply breaks off in its middle
    "duplicate_fills",  # fill messages come twice
    "reorder_fills",  # fill messages come in the wrong order
    "lose_fills",  # fill messages do not come
    "width",  # records of a stream have more fields
]
BEFORE: frozenset[Kind] = frozenset({"limit", "error", "drop_request"})
AFTER: frozenset[Kind] = frozenset({"drop_reply", "unknown", "slow", "cut"})


class Fault(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One planted fault; `path` is a beginning of a request's path or, for streams, a tr_id."""

    kind: Kind
    path: str = ""
    method: str = ""
    count: Annotated[int, Meta(ge=1)] | None = None
    """How often it strikes; unset: until it is cleared."""
    chance: Annotated[float, Meta(gt=0, le=1)] = 1.0
    code: str = ""
    """Of an error, in the venue's words: EGW00215."""
    seconds: Annotated[float, Meta(ge=0)] = 1.0
    fields: Annotated[int, Meta(ge=-10, le=10)] = 1
    struck: int = 0

    def matches(self, path: str, method: str) -> bool:
        return path.startswith(self.path) and self.method in ("", method)


class FaultInjector:
    def __init__(self, seed: int) -> None:
        self._planted: list[Fault] = []
        self._random = random.Random(seed)  # noqa: S311 - reproducible on purpose

    def add(self, fault: Fault) -> None:
        self._planted.append(fault)

    def clear(self) -> None:
        self._planted.clear()

    def listed(self) -> list[Fault]:
        return list(self._planted)

    def take(self, kinds: frozenset[Kind], path: str, method: str = "") -> Fault | None:
        """The first planted fault of these kinds that hits now; it counts as used."""
        for fault in self._planted:
            if fault.kind not in kinds or not fault.matches(path, method):
                continue
            if fault.count is not None and fault.struck >= fault.count:
                continue
            if fault.chance < 1 and self._random.random() >= fault.chance:
                continue
            fault.struck += 1
            return fault
        return None

    def by_chance(self, share: float) -> bool:
        return share > 0 and self._random.random() < share
