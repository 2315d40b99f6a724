"""Codes that are raised in a run: none is lost, and a lockdown ends as a whole."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from qts.domain import ManualClock, OperationError, RefusedError, UnreachableError
from qts.notify import RecentAlerts
from qts.pipeline.engine import resume_after_release
from qts.risk import SafetyState, fail_safe
from qts.risk.fail_safe import FailSafeReporter


class StoredCodes:
    """A fail-safe whose database answers with the next of `errors`, and then takes everything."""

    def __init__(self, *errors: Exception) -> None:
        self.clock = ManualClock()
        self.alerts = RecentAlerts()
        self.written: list[str] = []
        self._errors = list(errors)
        self.reporter = FailSafeReporter(cast(Any, self), self.alerts.add, self.clock)

    async def trip(self, code: str, _text: str) -> None:
        if self._errors:
            raise self._errors.pop(0)
        self.written.append(code)


async def test_codes_wait_for_the_database_in_their_order() -> None:
    codes = StoredCodes(UnreachableError("no database"), OperationError("it begins"))
    codes.reporter.trip("FS104", "open losses")
    codes.reporter.trip("GR074", "no buyer")
    await codes.clock.advance(1.5)
    assert codes.written == []
    await codes.clock.advance(1)
    assert codes.written == ["FS104", "GR074"]
    codes.reporter.trip("FS105", "silence")
    await codes.clock.advance(0)
    assert codes.written == ["FS104", "GR074", "FS105"]


async def test_close_waits_until_the_codes_are_stored() -> None:
    codes = StoredCodes(UnreachableError("no database"))
    codes.reporter.trip("FS112", "account taken")
    closing = asyncio.create_task(codes.reporter.close())
    await codes.clock.advance(0)
    assert not closing.done()
    await codes.clock.advance(1)
    await closing
    assert codes.written == ["FS112"]


async def test_close_gives_up_in_the_end(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fail_safe, "CLOSE_TIMEOUT_S", 0.01)
    codes = StoredCodes(UnreachableError("no database"))
    codes.reporter.trip("FS112", "account taken")
    codes.reporter.trip("GR074", "no buyer")
    await codes.reporter.close()
    assert codes.written == []
    assert '"codes": ["FS112", "GR074"]' in capfd.readouterr().err


async def test_a_lockdown_is_shown_before_it_is_stored() -> None:
    codes = StoredCodes(UnreachableError("no database"))
    codes.reporter.trip("FS104", "open losses")
    codes.reporter.trip("GR074", "no buyer")
    (alert,) = codes.alerts.all()
    assert (alert.severity, alert.text, alert.code) == ("critical", "open losses", "FS104")


@pytest.mark.parametrize("error", [RefusedError("no such code"), ValueError("broken")])
async def test_a_code_that_cannot_be_written_holds_no_other_up(error: Exception) -> None:
    codes = StoredCodes(error)
    codes.reporter.trip("XX000", "?")
    codes.reporter.trip("FS104", "open losses")
    await codes.clock.advance(0)
    assert codes.written == ["FS104"]


class Run:
    """The parts of a run that a release resumes."""

    def __init__(self) -> None:
        self.monitor = SimpleNamespace(is_current=True, safety=SimpleNamespace(state="NORMAL"))
        self.stopping = False
        self.stops = Mock()
        self._was_locked = False

    def is_stopping(self) -> bool:
        return self.stopping

    def check(self, state: str, *, is_current: bool = True) -> int:
        """Return how often it was resumed so far."""
        self.monitor.safety.state, self.monitor.is_current = SafetyState(state), is_current
        self._was_locked = resume_after_release(cast(Any, self), self._was_locked)
        resumed = self.stops.pipeline.resume.call_count
        assert self.stops.micro_risk.reset.call_count == resumed
        return int(resumed)


def test_a_release_ends_what_the_lockdown_had_stopped() -> None:
    run = Run()
    states = ("NORMAL", "LOCKDOWN", "LOCKDOWN", "NORMAL", "NORMAL", "LOCKDOWN", "WARNING")
    assert [run.check(state) for state in states] == [0, 0, 0, 1, 1, 1, 2]


def test_a_database_that_is_back_is_no_release() -> None:
    run = Run()
    assert (
        run.check("NORMAL") == run.check("LOCKDOWN", is_current=False) == run.check("NORMAL") == 0
    )
    run.check("LOCKDOWN")
    run.check("LOCKDOWN", is_current=False)
    assert run.check("NORMAL") == 1  # released while the database was away


def test_a_run_that_is_being_stopped_does_not_go_on() -> None:
    run = Run()
    run.check("LOCKDOWN")
    run.stopping = True
    assert run.check("NORMAL") == 0
