"""The parameters of a strategy, as its owner set them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Self

import msgspec

from qts.cache.value import Value, to_text

_OWN = ("strategy_id", "active", "updated_at", "received_at", "ver")
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
PARAMETERS_MAX = 256
CHARACTERS_MAX = 65_536


class StrategyParams(Value, frozen=True, kw_only=True):
    """`strat:<strategy_id>`. Every parameter is a field of the hash, beside the ones of ours."""

    kind: ClassVar[str] = "strategy"
    prefix: ClassVar[str] = "strat:"
    named_by: ClassVar[str] = "strategy_id"
    dated_by: ClassVar[str] = "updated_at"
    varies: ClassVar[bool] = True

    strategy_id: str
    active: bool
    params: Mapping[str, str]
    updated_at: int

    def check(self) -> None:
        if len(self.params) > PARAMETERS_MAX:
            self.refuse("params", f"{len(self.params)} long", f"{PARAMETERS_MAX} at most")
        for parameter, text in self.params.items():
            if parameter in _OWN or not _PARAMETER.fullmatch(parameter):
                self.refuse("a parameter", repr(parameter), f"a plain word, none of {_OWN}")
            if not isinstance(text, str) or not _is_unicode(text):
                self.refuse(parameter, repr(text), "text that UTF-8 can write")
        size = sum(map(len, self.params.values()))
        if size > CHARACTERS_MAX:
            self.refuse("params", f"{size} characters", f"{CHARACTERS_MAX} at most")

    def fields(self) -> dict[str, str]:
        return {own: to_text(getattr(self, own)) for own in _OWN} | dict(self.params)

    @classmethod
    def from_fields(cls, fields: dict[str, str]) -> Self:
        own = {name: text for name, text in fields.items() if name in _OWN}
        params = {name: text for name, text in fields.items() if name not in _OWN}
        return msgspec.convert({**own, "params": params}, cls, strict=False)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
