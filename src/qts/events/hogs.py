"""Handlers that misbehave on purpose, for the proof of isolation."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from qts.events.event import Event

SLEEP_S = 5.0
_BURN_S = 0.005
_LETTERS = "abcd"


def glance(_event: Event) -> None:
    """Does next to nothing."""


def doze(_event: Event) -> None:
    time.sleep(SLEEP_S)


class Burn:
    """Computes in pure Python for 5 ms; any thread can cut in at the switch interval."""

    def __init__(self, letter: str) -> None:
        self.__qualname__ = f"burn_{letter}"

    def __call__(self, _event: Event) -> None:
        end = time.perf_counter() + _BURN_S
        while time.perf_counter() < end:
            sum(number * number for number in range(50))


class Sort:
    """Sits in one C call that nobody can interrupt: `sorted` of so many numbers."""

    def __init__(self, letter: str, count: int) -> None:
        self.__qualname__ = f"sort_{letter}"
        self._made_of = (letter, count)
        self._numbers = _numbers(count)

    def __call__(self, _event: Event) -> None:
        sorted(self._numbers)

    def __reduce__(self) -> tuple[Callable[..., Sort], tuple[str, int]]:
        return Sort, self._made_of  # the list is made again where it goes


def hogs(count: int, c_call_ms: float) -> list[Burn] | list[Sort]:
    """The handlers of P2: burners, or sorters whose call takes so long on this machine."""
    letters = _LETTERS[:count]
    if not c_call_ms:
        return [Burn(letter) for letter in letters]
    trial = _numbers(50_000)
    took = min(_took(trial) for _ in range(3))
    size = max(1000, round(len(trial) * c_call_ms / 1000 / took))
    return [Sort(letter, size) for letter in letters]


def _numbers(count: int) -> list[float]:
    chance = random.Random(1)  # noqa: S311 - the same list each time
    return [chance.random() for _ in range(count)]


def _took(numbers: list[float]) -> float:
    began = time.perf_counter()
    sorted(numbers)
    return time.perf_counter() - began
