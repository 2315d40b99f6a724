"""Whether an answer is looked for on the spot or slept for: what was faster lately.

On a CPU of its own a server near by answers sooner than a sleeping process is woken. One that is
far away, or has to share this CPU, answers later for being waited for like that.
"""

from __future__ import annotations

_OTHER = 32  # of so many calls one tries the other way
_STEP_S = 2e-6  # a median moves by so much with each call, however long that was held up
_CLEARLY = 0.75  # to sleep must be faster by so much


class Looks:
    """Of one connection."""

    def __init__(self) -> None:
        self._calls = 0
        self._medians_s = [0.0, 0.0]  # slept for, looked for

    def choose(self) -> bool:
        """Look for the next one?"""
        self._calls += 1
        pays = self._medians_s[True] * _CLEARLY < self._medians_s[False]
        return pays if self._calls % _OTHER else not pays

    def note(self, looked: bool, took_s: float) -> None:
        self._medians_s[looked] += _STEP_S if took_s > self._medians_s[looked] else -_STEP_S
