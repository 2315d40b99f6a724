"""File of a study: one line that says what is searched, then one line for each finished trial.

A line is written with one call, after its trial has ended. A process that is killed loses the
trials in progress, and the next one drops a last line that is not complete.
"""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from qts.domain import RefusedError
from qts.optimise.trial import Trial

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class StudyFile:
    """Trials of a study, locked for one process while it is entered."""

    def __init__(self, folder: Path, name: str, identity: dict[str, str]) -> None:
        if not _NAME.fullmatch(name):
            raise RefusedError(
                f"--study {name!r}: expected letters, digits, '.', '_' and '-', at most 64"
            )
        self.name = name
        self.path = folder / f"{name}.jsonl"
        self.trials: dict[tuple[str, int, int], Trial] = {}
        self._identity = identity
        self._file = -1

    def __enter__(self) -> Self:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read()
        except BlockingIOError:
            os.close(self._file)
            raise RefusedError(f"study {self.name!r} is run by another process") from None
        except BaseException:
            os.close(self._file)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._file)

    def add(self, trial: Trial) -> None:
        self.trials[trial.key] = trial
        self._append(trial)

    def _append(self, value: object) -> None:
        os.write(self._file, msgspec.json.encode(value) + b"\n")

    def _read(self) -> None:
        content = self.path.read_bytes()
        complete = content[: content.rfind(b"\n") + 1]
        if len(complete) < len(content):
            os.ftruncate(self._file, len(complete))
        head, *lines = complete.splitlines() or [b""]
        if not head:
            self._append(self._identity)
            return
        try:
            self._compare(msgspec.json.decode(head, type=dict[str, str]))
            for line in lines:
                trial = msgspec.json.decode(line, type=Trial)
                self.trials[trial.key] = trial
        except msgspec.DecodeError as error:
            raise RefusedError(
                f"study {self.name!r}: {self.path} is damaged ({error}); name another --study"
            ) from None

    def _compare(self, stored: dict[str, str]) -> None:
        for key in (*self._identity, *stored):
            ours, theirs = self._identity.get(key, "none"), stored.get(key, "none")
            if ours != theirs:
                raise RefusedError(
                    f"study {self.name!r} has {key} {theirs}, this command {ours}; name another "
                    "--study"
                )
