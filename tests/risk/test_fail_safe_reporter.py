"""Codes that are raised in a run: none is lost, and a lockdown ends as a whole."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from qts.domain import ManualClock, OperationError, RefusedError, UnreachableError
from qts.notify import RecentAlerts
from qts.pipeline.maintenance import resume_after_release
from qts.risk import SafetyState
from qts.risk.fail_safe_reporter import FailSafeReporter


class Books:
    """A fail-safe whose database answers with the next of `errors`, and then takes everything."""

    def __init__(self, *errors: Exception) -> None:
        self.clock = ManualClock()
        self.notices = RecentAlerts()
        self.written: list[str] = []
        self._errors = list(errors)
        self.alarm = FailSafeReporter(cast(Any, self), self.notices.add, self.clock)

    async def trip(self, code: str, _text: str) -> None:
        if self._errors:
            raise self._errors.pop(0)
        self.written.append(code)


async def test_codes_wait_for_the_database_in_their_order() -> None:
    books = Books(UnreachableError("no database"), OperationError("it begins"))
    books.alarm.trip("FS104", "open losses")
    books.alarm.trip("GR074", "no buyer")
    await books.clock.advance(1.5)
    assert books.written == []
    await books.clock.advance(1)
    assert books.written == ["FS104", "GR074"]
    books.alarm.trip("FS105", "silence")
    await books.clock.advance(0)
    assert books.written == ["FS104", "GR074", "FS105"]


async def test_an_owner_hears_of_a_lockdown_before_the_database_does() -> None:
    books = Books(UnreachableError("no database"))
    books.alarm.trip("FS104", "open losses")
    books.alarm.trip("GR074", "no buyer")
    (notice,) = books.notices.all()
    assert (notice.severity, notice.text, notice.code) == ("critical", "open losses", "FS104")


@pytest.mark.parametrize("error", [RefusedError("no such code"), ValueError("broken")])
async def test_a_code_that_cannot_be_written_holds_no_other_up(error: Exception) -> None:
    books = Books(error)
    books.alarm.trip("XX000", "?")
    books.alarm.trip("FS104", "open losses")
    await books.clock.advance(0)
    assert books.written == ["FS104"]


class Run:
    """As much of a run as a release ends."""

    def __init__(self) -> None:
        self.watch = SimpleNamespace(is_current=True, safety=SimpleNamespace(state="NORMAL"))
        self.stopping = False
        self.micro, self.pipeline = Mock(), Mock()
        self._was_locked = False

    def look(self, state: str, *, is_current: bool = True) -> int:
        """How often it went on by now."""
        self.watch.safety.state, self.watch.is_current = SafetyState(state), is_current
        self._was_locked = resume_after_release(cast(Any, self), self._was_locked)
        assert self.micro.released.call_count == self.pipeline.resume.call_count
        return int(self.pipeline.resume.call_count)


def test_a_release_ends_what_the_lockdown_had_stopped() -> None:
    run = Run()
    states = ("NORMAL", "LOCKDOWN", "LOCKDOWN", "NORMAL", "NORMAL", "LOCKDOWN", "WARNING")
    assert [run.look(state) for state in states] == [0, 0, 0, 1, 1, 1, 2]


def test_a_database_that_is_back_is_no_release() -> None:
    run = Run()
    assert run.look("NORMAL") == run.look("LOCKDOWN", is_current=False) == run.look("NORMAL") == 0
    run.look("LOCKDOWN")
    run.look("LOCKDOWN", is_current=False)
    assert run.look("NORMAL") == 1  # released while the database was away


def test_a_run_that_is_being_stopped_does_not_go_on() -> None:
    run = Run()
    run.look("LOCKDOWN")
    run.stopping = True
    assert run.look("NORMAL") == 0
