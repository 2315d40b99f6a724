"""The sentence that says whether QTS trades: of every combination of what is known."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from qts.app.account_configs import is_simulated
from qts.brokers import AccountLease, is_account_locked
from qts.config import Config
from qts.dashboard.live_status import STALE_S, LimitStatus, LiveStatus, SafetyStatus, VenueStatus
from qts.dashboard.runs import RunStatus, StoredRunStatus
from qts.dashboard.terminal.tables import frame, rows_of
from qts.dashboard.verdict import Observed, StoredState, judge
from qts.database import Database
from qts.domain import Secret, SystemClock
from qts.risk import FailSafeStatus, SafetyState, Switch
from qts.simulators import KisKey
from qts.venues import KisConfig, VenuesConfig
from tests.accounts import PAPER, UPBIT
from tests.dashboard import statuses
from tests.outbox.kit import until

KEPT = {
    "QTS", "qts", "run", "kill", "off", "FAIL", "LOCKDOWN", "FS", "rsi_scalper", "lunch", "kim",
}  # fmt: skip
NOW = datetime(2026, 11, 17, tzinfo=UTC)
ON, OFF = Switch(True, "", "kim", NOW), Switch(False, "lunch", "kim", NOW)


def stored(
    state: str = "NORMAL", switch: Switch | None = ON, *, locked: bool = True
) -> StoredState:
    safety = FailSafeStatus(SafetyState(state), "FS070" if state != "NORMAL" else None, "x", NOW)
    return StoredState(safety, {"account": switch} if switch else {}, locked)


def remote(age_s: float = 1.0, **more: Any) -> StoredRunStatus:
    said = judge(Observed(live=statuses.live(), age_s=0.0))
    fields: dict[str, Any] = {
        "name": "a", "accounts": ["paper:1"], "venue": "kis", "label": "PAPER", "version": "1",
        "started_at": NOW, "trades": "", "verdict": said, "positions": 0,
    } | more  # fmt: skip
    status = RunStatus(**fields)
    return StoredRunStatus(account="paper:1", status=status, age_s=age_s, is_holders=True)


@pytest.mark.parametrize(
    ("found", "state", "words"),
    [
        (replace(stored(), status=remote()), "trading", "QTS trades with 1 strategy."),
        (replace(stored(switch=OFF), status=remote()), "stopped", "the kill switch is on (lunch"),
        (replace(stored(switch=None), status=remote()), "stopped", "was never allowed"),
        (replace(stored("FAIL"), status=remote()), "exits_only", "the fail-safe is in FAIL"),
        (replace(stored(), status=remote(6.0)), "unknown", "its last status is 6 s old"),
        (replace(stored(locked=False), status=remote()), "stopped", "QTS does not run, its last"),
        # Of two accounts the switch may be one's: the run knows which.
        (replace(stored(switch=OFF), status=remote(accounts=["a:1", "b:2"])), "trading", "trades"),
    ],
)
def test_a_run_elsewhere_is_judged_by_what_it_stored(
    found: StoredState, state: str, words: str
) -> None:
    verdict = judge(Observed(stored=found))
    assert verdict.state == state
    assert words in verdict.en


def safety(**more: Any) -> SafetyStatus:
    usual: dict[str, Any] = {
        "state": "NORMAL",
        "code": None,
        "message": "",
        "trading": True,
        "suspended": "",
        "may_trade": True,
    }
    return SafetyStatus(**usual | more)


def seen(live: LiveStatus | None = None, **more: Any) -> Observed:
    usual: dict[str, Any] = {
        "live": live or statuses.live(),
        "age_s": 0.1,
        "stored": stored(),
    }
    return Observed(**usual | more)


def limit(name: str, used: int = 100) -> list[LimitStatus]:
    return [LimitStatus(name=name, used=Decimal(used), limit=Decimal(100))]


@pytest.mark.parametrize(
    ("observed", "state", "text"),
    [
        (seen(), "trading", "QTS trades with 1 strategy."),
        (
            seen(statuses.live(strategies=[statuses.strategy(warm_up="3 of 9 series")])),
            "trading",
            "with 1 strategy; warming up: rsi_scalper (3 of 9 series).",
        ),
        (
            seen(
                statuses.live(
                    strategies=[statuses.strategy(), statuses.strategy(key="b", enabled=False)]
                )
            ),
            "trading",
            "QTS trades with 1 of 2 strategies; off: b.",
        ),
        (
            seen(stored=stored(switch=OFF)),
            "stopped",
            "not even a stop's: the kill switch is on (lunch, kim)",
        ),
        (seen(stored=stored(switch=None)), "stopped", "never allowed (qts kill off)"),
        (
            seen(statuses.live(safety=safety(trading=False)), stored=None),
            "stopped",
            "the kill switch is on in the run",
        ),
        (
            seen(
                statuses.live(safety=safety(state="LOCKDOWN", trading=False, database_read=False)),
                stored=None,
            ),
            "stopped",
            "not even a stop's: the run cannot read the database.",
        ),
        (
            seen(stored=stored("FAIL")),
            "exits_only",
            "stops and exits still sell: the fail-safe is in FAIL FS070 x",
        ),
        (
            seen(statuses.live(safety=safety(state="LOCKDOWN"))),
            "exits_only",
            "the fail-safe is in LOCKDOWN",
        ),
        (seen(statuses.live(safety=safety(may_trade=False))), "stopped", "not reconciled"),
        (seen(statuses.live(safety=safety(session_open=False))), "stopped", "the market is closed"),
        (
            seen(statuses.live(safety=safety(suspended="losses"))),
            "exits_only",
            "suspended (losses)",
        ),
        (seen(statuses.live(safety=safety(clock_synced=False))), "exits_only", "the clock differs"),
        (
            seen(statuses.live(limits=limit("daily_loss"))),
            "exits_only",
            "the daily loss limit is reached (100 of 100)",
        ),
        (seen(statuses.live(limits=limit("daily_loss", 99))), "trading", ""),
        (seen(statuses.live(strategies=[])), "exits_only", "no strategy is configured"),
        (
            seen(statuses.live(strategies=[statuses.strategy(stopped="errors")])),
            "exits_only",
            "every strategy is off",
        ),
        (seen(statuses.live(tick_age_s=23.0)), "exits_only", "no price for 23 s"),
        (seen(statuses.live(tick_age_s=21.0)), "trading", ""),
        (
            seen(age_s=STALE_S + 1),
            "unknown",
            "a run holds the account, but its last status is 4 s old",
        ),
        (
            seen(age_s=9.0, stored=stored(locked=False)),
            "stopped",
            "QTS does not run, its last status is 9 s old.",
        ),
        (
            seen(age_s=9.0, stored=None, problems={"database": "gone"}),
            "unknown",
            "trades: database: gone.",
        ),
        (Observed(), "unknown", "Unknown whether QTS trades: not read yet."),
        (Observed(stored=stored()), "unknown", "it has sent no status yet"),
        (
            Observed(stored=stored(), problems={"cache": "refused"}),
            "unknown",
            "cannot be read (refused)",
        ),
        (Observed(stored=stored(locked=False)), "stopped", "QTS does not run. Start it"),
    ],
)
def test_the_sentence(observed: Observed, state: str, text: str) -> None:
    verdict = judge(observed)
    assert verdict.state == state, verdict.en
    assert text in verdict.en
    words = set(re.findall("[A-Za-z_]{2,}", verdict.ko))
    assert words <= KEPT, verdict.ko  # names, codes, commands, and what the operator typed


@given(
    st.one_of(st.none(), st.floats(0, 100)),
    st.one_of(
        st.none(),
        st.builds(
            stored,
            st.sampled_from(["NORMAL", "FAIL"]),
            st.sampled_from([ON, OFF]),
            locked=st.booleans(),
        ),
    ),
    st.booleans(),
    st.dictionaries(st.sampled_from(["cache", "database", "status"]), st.text(), max_size=2),
)
def test_it_never_says_that_qts_trades_without_a_recent_status(
    age_s: float | None, found: StoredState | None, trading: bool, problems: dict[str, str]
) -> None:
    live = None if age_s is None else statuses.live(safety=safety(trading=trading))
    verdict = judge(Observed(live=live, age_s=age_s, stored=found, problems=problems))
    is_recent = age_s is not None and age_s <= STALE_S
    may_trade = found is None or (
        found.switches["account"].enabled and found.safety.state == "NORMAL"
    )
    assert (verdict.state == "trading") == (is_recent and trading and may_trade)
    if not is_recent and (found is None or found.is_locked):
        assert verdict.state == "unknown"


async def test_a_run_that_holds_its_account_is_seen(database: Database) -> None:
    assert not await is_account_locked(database, PAPER)
    async with AccountLease(database, PAPER, "home", SystemClock(), is_live=False):
        assert await is_account_locked(database, PAPER)
        assert not await is_account_locked(database, UPBIT)

    async def is_free() -> bool:
        return not await is_account_locked(database, PAPER)

    await until(is_free, 30)  # the server ends the session of the lock in its own time


def test_only_the_keys_of_the_simulator_are_simulated() -> None:
    def config(key: str | None) -> Config:
        kis = KisConfig(app_key=Secret(key) if key else None, url="http://127.0.0.1:1")
        return replace(Config(), venues=VenuesConfig(kis=kis))

    assert is_simulated(config(KisKey().app_key))
    assert not is_simulated(config("PSreal"))  # a proxy on this machine may lead to the venue
    assert not is_simulated(config(None))


def at_two_venues(kis: SafetyStatus, upbit: SafetyStatus) -> LiveStatus:
    usual = statuses.live()
    venues = [
        VenueStatus(
            venue=venue,
            broker="paper",
            account=digest * 16,
            ticks=5,
            feed=statuses.feed(),
            money=usual.money,
            safety=state,
        )
        for venue, digest, state in (("kis", "a", kis), ("upbit", "b", upbit))
    ]
    return replace(usual, venues=venues, positions=[replace(usual.positions[0], venue="kis")])


def test_each_of_several_venues_has_its_own_sentence() -> None:
    both = judge(seen(at_two_venues(safety(), safety())))
    assert (both.state, both.en.count("QTS trades")) == ("trading", 2)
    one = judge(seen(at_two_venues(safety(), safety(trading=False)), stored=stored(switch=OFF)))
    assert one.state == "exits_only"
    assert "kis: QTS trades" in one.en
    assert "upbit: QTS sends no order" in one.en
    none = judge(seen(at_two_venues(safety(trading=False), safety(trading=False))))
    assert none.state == "stopped"


def test_the_terminal_names_the_venue_of_what_it_shows() -> None:
    snapshot = statuses.snapshot(at_two_venues(safety(), safety(state="LOCKDOWN")))
    text = frame(snapshot)
    assert "on kis, upbit LOCKDOWN" in text
    assert "kis 005930" in text
    assert [row[0] for row in rows_of("Feed", snapshot) if row[0] in ("kis", "upbit")] == [
        "kis",
        "upbit",
    ]
