"""Value that must never be printed, logged or stored as plain text."""

from __future__ import annotations

import hmac


class Secret:
    """Secret text; every way of printing it shows three stars."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the text; call it only where the text is sent to the service that needs it."""
        return self._value

    def __repr__(self) -> str:
        return "Secret('***')"

    def __str__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return format("***", spec)

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(_bytes(self._value), _bytes(other._value))

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> str:
        raise TypeError("a Secret cannot be pickled")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # environment variables may contain invalid UTF-8
