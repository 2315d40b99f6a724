"""Errors that QTS raises as a tree, the refusal of unknown names, and values that no text shows.

    QtsError
    ├── RefusedError               invalid input; nothing was done, exit code 2
    │   ├── ConfigError            invalid settings file or environment variable
    │   ├── EventRefusedError      event, handler or event type that violates the contract
    │   ├── HomeInUseError         another QTS runs on this home directory
    │   ├── ScenarioError          router scenario that contradicts itself or cannot be read
    │   └── SchemaTooNewError      database that was migrated by a newer QTS
    └── OperationError             valid request that could not be carried out, exit code 1
        ├── CacheStaleDataError        cached value too old to act on
        ├── LaneFullError              no capacity in a lane before the timeout
        ├── PriceDataUnavailableError  no price or order book available
        ├── TradeLimitExceededError    number of trades per day used up
        ├── ServerFailedError          embedded server that did not start or died
        └── UnreachableError           server named in the settings that does not answer
            └── OutcomeUnknownError    connection lost during a write; it may have been committed

Errors of other libraries are translated into these where the library is called.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class QtsError(Exception):
    """Base of every error that QTS raises; its text is one line a user can act on."""

    exit_code = 1


class RefusedError(QtsError):
    exit_code = 2


class ConfigError(RefusedError):
    pass


class EventRefusedError(RefusedError):
    pass


class HomeInUseError(RefusedError):
    pass


class ScenarioError(RefusedError):
    pass


class SchemaTooNewError(RefusedError):
    pass


class OperationError(QtsError):
    pass


class CacheStaleDataError(OperationError):
    pass


class PriceDataUnavailableError(OperationError):
    pass


class TradeLimitExceededError(OperationError):
    pass


class LaneFullError(OperationError):
    pass


class ServerFailedError(OperationError):
    pass


class UnreachableError(OperationError):
    pass


class OutcomeUnknownError(UnreachableError):
    pass


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


def split_names(given: str | Iterable[str]) -> tuple[str, ...]:
    """Return the names of a text with commas, or of a list.

    >>> split_names("kis, upbit")
    ('kis', 'upbit')
    """
    parts = given.split(",") if isinstance(given, str) else given
    return tuple(name for part in parts if (name := part.strip()))


def check_name(kind: str, given: str, known: Iterable[str]) -> None:
    """Raise RefusedError with the known names unless `given` is one of them."""
    names = list(known)
    if given in names:
        return
    expected = f"expected one of {name_choices(given, names)}" if names else "none is known"
    raise RefusedError(f"{kind} {given!r} is unknown; {expected}")


class Secret:
    """Text that must never be printed, logged or stored as it is: printed, it is three stars."""

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
        import hmac  # here, because every command loads this module

        return hmac.compare_digest(_bytes(self._value), _bytes(other._value))

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> str:
        raise TypeError("a Secret cannot be pickled")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # environment variables may contain invalid UTF-8
