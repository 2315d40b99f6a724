"""Named places where a test may let the process die.

`QTS_DIE_AT=before_send` ends it there without a word, `QTS_DIE_AT=before_send:3` at the third
time. Unset, a checkpoint is a call that does nothing.
"""

from __future__ import annotations

import os
import signal


def _nothing(_name: str) -> None:
    pass


class _Executioner:
    def __init__(self, asked: str) -> None:
        self._name, _, times = asked.partition(":")
        self._left = int(times or 1)

    def reached(self, name: str) -> None:
        if name == self._name:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


_asked = os.environ.get("QTS_DIE_AT", "")
failpoint = _Executioner(_asked).reached if _asked else _nothing
