"""Failpoints: named places where a test kills the process.

`QTS_DIE_AT=before_send` kills it there, `QTS_DIE_AT=before_send:3` at the third time. Unset, a
failpoint does nothing.
"""

from __future__ import annotations

import os
import signal


def _nothing(_name: str) -> None:
    pass


class _Failpoint:
    def __init__(self, setting: str) -> None:
        self._name, _, times = setting.partition(":")
        self._left = int(times or 1)

    def reached(self, name: str) -> None:
        if name == self._name:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


_setting = os.environ.get("QTS_DIE_AT", "")
failpoint = _Failpoint(_setting).reached if _setting else _nothing
