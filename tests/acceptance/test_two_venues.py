"""`qts run` on KIS and Upbit together: both trade, and one goes on where the other cannot."""

from __future__ import annotations

import os
import re
import signal
from functools import partial
from pathlib import Path

import pytest

from qts.cli.main import run_command
from qts.domain import AccountKey
from qts.pipeline import replay_decisions
from qts.pipeline.decision_journal import GateEntry, read_journal
from tests.acceptance.runs import Run, running
from tests.embedded.clients import until

pytestmark = pytest.mark.timeout(300)  # a busy machine starts servers slowly

BOTH = {
    "QTS_FEED__VENUE": "kis,upbit",
    "QTS_SIMULATOR__SYMBOLS": "30",
    "QTS_PIPELINE__STRATEGIES": "tests.acceptance.both:Both",
}
FILLS = "SELECT count(*) FROM fill WHERE account = $1"
VENUES = ("kis", "upbit")


ACCOUNTS = {venue: AccountKey.of("paper", f"paper-{venue}").account for venue in VENUES}


def fills(run: Run, venue: str) -> int:
    return int(run.query(FILLS, ACCOUNTS[venue])[0][0])


def has_filled(run: Run, venue: str, expected: int) -> bool:
    return fills(run, venue) >= expected


def simulator_pid(run: Run, venue: str) -> int:
    """The process of a venue's simulator, a child of the run."""
    for thread in Path(f"/proc/{run.process.pid}/task").iterdir():
        for pid in map(int, (thread / "children").read_text().split()):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            if "simulate" in words and venue in words:
                return pid
    raise AssertionError(f"no simulator of {venue}")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path.resolve() / "home"


def test_both_venues_trade_in_one_run_and_every_decision_replays(home: Path) -> None:
    journals = home.parent / "journals"
    with running(home, **BOTH, QTS_PIPELINE__JOURNAL=str(journals)) as run:
        run.until("Ready")
        for venue in VENUES:
            assert until(partial(has_filled, run, venue, 4), seconds=140), venue
        run.ends_well(signal.SIGTERM)
        summary = run.summary
    assert summary["verdict"] == "OK"
    assert summary["books_agree"] is True
    assert set(summary["venues"]) == set(VENUES)
    for name in ("ticks", "fills", "positions", "signals", "intents"):
        assert summary[name] == sum(each[name] for each in summary["venues"].values()), name
    for venue in summary["venues"].values():
        assert (venue["broker"], venue["books_agree"], venue["differences"]) == ("paper", True, [])
        assert venue["attempts"]["ACKED"] > 0
    (journal,) = journals.iterdir()
    report = replay_decisions(journal)
    assert report.differences == []
    assert report.decisions > 0
    sent = {
        entry.proposal.symbol
        for entry in read_journal(journal)
        if isinstance(entry, GateEntry) and not entry.codes
    }
    assert {symbol.startswith("KRW-") for symbol in sent} == {True, False}


@pytest.mark.soak
def test_one_account_is_stopped_one_venue_dies_and_a_crash_loses_nothing(home: Path) -> None:
    with running(home, **BOTH) as run:
        run.until("Ready")
        for venue in VENUES:
            assert until(partial(has_filled, run, venue, 2), seconds=140), venue
        environ = {"QTS_HOME": str(home), **BOTH}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environ.items():
                patch.setenv(name, value)
            assert run_command(["kill", "on", "--account", "upbit", "--reason", "test"]) == 0
        assert until(lambda: _is_quiet(run, "upbit"), seconds=30)
        before = fills(run, "kis")
        assert until(lambda: has_filled(run, "kis", before + 2), seconds=60)  # the other goes on
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environ.items():
                patch.setenv(name, value)
            assert run_command(["kill", "off", "--reason", "test"]) == 0
        os.kill(simulator_pid(run, "kis"), signal.SIGKILL)
        before = fills(run, "upbit")
        assert until(lambda: has_filled(run, "upbit", before + 4), seconds=60)
        assert run.process.poll() is None
        run.process.kill()
        run.end()
    with running(home, **BOTH) as run:
        run.until("Ready")
        run.until_resolved()
        first = {venue: fills(run, venue) for venue in VENUES}
        for venue in VENUES:
            more = partial(has_filled, run, venue, first[venue] + 2)
            assert until(more, seconds=140), venue
        run.ends_well(signal.SIGTERM)
        assert run.summary["books_agree"] is True


def _is_quiet(run: Run, venue: str) -> bool:
    """Whether no intent is open there, so that nothing more fills."""
    query = "SELECT count(*) FROM order_intent WHERE account = $1 AND status = 'CREATED'"
    return int(run.query(query, ACCOUNTS[venue])[0][0]) == 0


def test_an_unknown_venue_is_refused_with_the_nearest_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QTS_FEED__VENUE", "kis,upbti")
    assert run_command(["run", "--duration", "1s"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert re.search(r'feed\.venue = "upbti": expected .*kis, upbit; did you mean upbit\?', line)
