"""Gaps in the numbers of a publisher: seen at once, remembered until they are healed."""

from __future__ import annotations

from typing import NamedTuple


class Gap(NamedTuple):
    """Frames that did not arrive: all after `after` and before `before`."""

    after: int
    before: int

    @property
    def frames(self) -> int:
        return self.before - self.after - 1


class FrameNumbers:
    """Numbers of the frames of one publisher at a time, in the order in which they arrive."""

    def __init__(self) -> None:
        self.publisher = ""
        self.last = 0
        self.heal_after: int | None = None  # ticks of frames after it may be missing,
        self._heal_until = 0  # up to this one

    def follow(self, publisher: str, number: int) -> None:
        """Begin with a publisher whose frames up to `number` were not received."""
        self.publisher = publisher
        self.last = self._heal_until = number
        self.heal_after = 0

    def frame(self, number: int) -> Gap | None:
        """Take the number of a frame; return the gap in front of it. An old one has none."""
        gap = self._missing(number)
        self.last = max(self.last, number)
        return gap

    def is_old(self, number: int) -> bool:
        """Return whether a frame came before: twice, or after a later one."""
        return number <= self.last

    def heartbeat(self, number: int) -> Gap | None:
        """Take the number of the last frame that was sent; return the gap up to it."""
        gap = self._missing(number + 1)
        self.last = max(self.last, number)
        return gap

    def healed(self, number: int) -> bool:
        """Take an answer that is complete up to `number`; return whether it closes all gaps."""
        if self.heal_after is None or number < self._heal_until:
            return False
        self.heal_after = None
        return True

    def _missing(self, number: int) -> Gap | None:
        if number <= self.last + 1:
            return None
        if self.heal_after is None:
            self.heal_after = self.last
        self._heal_until = number - 1
        return Gap(self.last, number)
