"""Whether QTS trades and, if not, why: one sentence for the pages and the terminal.

    run reports ──▶ no reason                ▶ trading
                    reasons against entries  ▶ exits_only
                    reasons against all      ▶ stopped
    run stores its status elsewhere          ▶ as that run says in the database
    run ended                                ▶ stopped
    run silent, or nothing can be read       ▶ unknown

A missing value is never a reason: what is not known makes the verdict unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from qts.brokers import is_account_locked
from qts.dashboard.live_status import (
    STALE_S,
    LiveStatus,
    SafetyStatus,
    StrategyStatus,
    Verdict,
)
from qts.dashboard.runs import RunStatus, StoredRunStatus, load_run_status
from qts.database import Database
from qts.domain import AccountKey
from qts.risk import FailSafe, FailSafeStatus, KillSwitch, SafetyState, Switch

SILENT_FEED_S = 10.0  # beyond two scans without a tick, prices do not arrive
MAX_REASONS = 4
ACCOUNT = "account"  # key of its switch
_BLOCKING = ("FAIL", "LOCKDOWN")

# remote: its live status is in another cache than this one; the database has its main figures.
RunState = Literal["reporting", "remote", "silent", "ended", "unknown"]


class StoredState(msgspec.Struct, frozen=True):
    """What the database says about the accounts of a run.

    `is_locked`: a run holds one of them; None: not read since the run last sent a status.
    `status` is what the run stored of the first account.
    """

    safety: FailSafeStatus
    switches: Mapping[str, Switch]
    is_locked: bool | None
    status: StoredRunStatus | None = None


async def read_stored(database: Database, *accounts: AccountKey) -> StoredState:
    """Return the worst safety state of the accounts and, of a switch, the one that is off."""
    states = [await FailSafe(database, each).now() for each in accounts]
    switches: dict[str, Switch] = {}
    for each in accounts:
        for name, switch in (await KillSwitch(database, each).all()).items():
            if name not in switches or not switch.enabled:
                switches[name] = switch
    return StoredState(
        max(states, key=lambda each: list(SafetyState).index(each.state)),
        switches,
        any([await is_account_locked(database, each) for each in accounts]),
        await load_run_status(database, accounts[0]),
    )


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What a view has read; None is what could not be read.

    `live` is the last readable status and `age_s` its age. `problems` names what could not be read,
    by source.
    """

    live: LiveStatus | None = None
    age_s: float | None = None
    stored: StoredState | None = None
    problems: Mapping[str, str] = {}

    @property
    def run(self) -> RunState:
        """State of the run: only a recent status shows that it works."""
        if self.live is not None and self.age_s is not None and self.age_s <= STALE_S:
            return "reporting"
        if self.stored is None or self.stored.is_locked is None:
            return "unknown"
        if self.remote is not None and self.stored.is_locked:
            return "remote"
        return "silent" if self.stored.is_locked else "ended"

    @property
    def status_age_s(self) -> float | None:
        """Age of the last status that was read, here or in the database."""
        if self.live is None and self.stored is not None and self.stored.status is not None:
            return self.stored.status.age_s
        return self.age_s

    @property
    def remote(self) -> StoredRunStatus | None:
        """Current status in the database of a run whose live status was never read here."""
        found = self.stored.status if self.stored and self.live is None else None
        return found if found and found.is_current else None


class _Reason(NamedTuple):
    code: str
    en: str
    ko: str
    blocks_exits: bool = False


def judge(seen: Observed) -> Verdict:
    """Return whether QTS trades, as far as it is known."""
    match seen.run, seen.live:
        case "reporting", LiveStatus() as live:
            return _of_run(live, seen)
        case "remote", _ if seen.remote is not None:
            return _of_remote(seen.remote.status, seen)
        case "ended", _:
            en, ko = _last_status(seen)
            return Verdict(
                state="stopped",
                en=f"QTS does not run{en}. Start it with qts run.",
                ko=f"QTS가 실행 중이 아닙니다{ko}. qts run 으로 시작하세요.",
                codes=["not_running"],
            )
        case "silent", _:
            en, ko = _silence(seen)
            return Verdict(
                state="unknown",
                en=f"Unknown whether QTS trades: a run holds the account, but {en}.",
                ko=f"거래 여부를 알 수 없습니다: 계좌를 사용하는 실행이 있지만 {ko}.",
                codes=["silent"],
            )
    why = "; ".join(f"{name}: {text}" for name, text in seen.problems.items()) or "not read yet"
    unread = [_UNREAD[name] for name in seen.problems if name in _UNREAD]
    return Verdict(
        state="unknown",
        en=f"Unknown whether QTS trades: {why}.",
        ko=f"거래 여부를 알 수 없습니다: {', '.join(unread) or '아직 읽지 못함'}.",
        codes=["unreadable"],
    )


def _of_venues(live: LiveStatus) -> Verdict:
    """Return the verdict of a run on several venues: what each account does, as the run sees it."""
    found = {
        each.venue: _of_run(
            replace(
                live,
                safety=each.safety,
                feed=each.feed,
                tick_age_s=each.tick_age_s,
                limits=each.limits,
                strategies=[
                    replace(one, enabled=one.enabled and each.venue not in one.stopped_at)
                    for one in live.strategies
                ],
                venues=[],
            ),
            Observed(),
        )
        for each in live.venues
    }
    states = {each.state for each in found.values()}
    return Verdict(
        state=states.pop() if len(states) == 1 else "exits_only",
        en=" ".join(f"{venue}: {each.en}" for venue, each in found.items()),
        ko=" ".join(f"{venue}: {each.ko}" for venue, each in found.items()),
        codes=list(dict.fromkeys(code for each in found.values() for code in each.codes)),
    )


def _of_remote(status: RunStatus, seen: Observed) -> Verdict:
    """Return what the run says, or what the database says against it: that is never older."""
    if status.verdict.state == "stopped" or len(status.accounts) > 1:
        return status.verdict
    reasons = [*_stored_switch(seen), *_stored_safety(seen)]
    return _refusing(reasons) if reasons else status.verdict


def _of_run(live: LiveStatus, seen: Observed) -> Verdict:
    if len(live.venues) > 1:
        return _of_venues(live)
    reasons = [*_switches(live, seen), *_safety(live, seen), *_run(live), *_limits(live)]
    reasons.extend(_strategies(live))
    return _refusing(reasons) if reasons else _trading(live)


def _refusing(reasons: list[_Reason]) -> Verdict:
    """Return the sentence of a run that does not trade, or only sells."""
    codes = [each.code for each in reasons]
    shown = reasons[:MAX_REASONS]
    en, ko = "; ".join(each.en for each in shown), ", ".join(each.ko for each in shown)
    if any(each.blocks_exits for each in reasons):
        return Verdict(
            state="stopped",
            en=f"QTS sends no order, not even a stop's: {en}.",
            ko=f"주문이 나가지 않습니다 (손절 주문 포함): {ko}.",
            codes=codes,
        )
    return Verdict(
        state="exits_only",
        en=f"QTS opens no position, stops and exits still sell: {en}.",
        ko=f"신규 진입이 없습니다 (청산과 손절은 계속됨): {ko}.",
        codes=codes,
    )


def _trading(live: LiveStatus) -> Verdict:
    """Return the sentence of a run that trades, with the strategies that do not, or not yet."""
    all_, on = len(live.strategies), [each for each in live.strategies if _is_on(each)]
    off = ", ".join(each.key for each in live.strategies if not _is_on(each))
    warming = ", ".join(f"{each.key} ({each.warm_up})" for each in on if each.warm_up)
    warming_ko = warming.replace(" of ", "/").replace(" series", "")
    count = f"{len(on)} of {all_} strategies" if off else f"{len(on)} {_plural(on)}"
    notes_en = "".join((f"; off: {off}" * bool(off), f"; warming up: {warming}" * bool(warming)))
    notes_ko = "".join((f", 중지: {off}" * bool(off), f", 준비 중: {warming_ko}" * bool(warming)))
    return Verdict(
        state="trading",
        en=f"QTS trades with {count}{notes_en}.",
        ko=f"전략 {all_}개 중 {len(on)}개로 거래 중입니다{notes_ko}.",
        codes=["some_strategies_off"] * bool(off) + ["warming_up"] * bool(warming),
    )


def _is_on(strategy: StrategyStatus) -> bool:
    return strategy.enabled and not strategy.stopped


def _plural(strategies: list[StrategyStatus]) -> str:
    return "strategy" if len(strategies) == 1 else "strategies"


def _switches(live: LiveStatus, seen: Observed) -> Iterator[_Reason]:
    if not live.safety.database_read:
        text = "the run cannot read the database"
        yield _Reason("database", text, "실행이 데이터베이스를 읽지 못함", True)
        return
    found = list(_stored_switch(seen))
    yield from found
    if not found and not live.safety.trading:
        yield _Reason("kill_switch", "the kill switch is on in the run", "비상 정지가 켜짐", True)


def _stored_switch(seen: Observed) -> Iterator[_Reason]:
    """Yield the account's switch in the database, unless it allows trading."""
    stored = seen.stored.switches.get(ACCOUNT) if seen.stored else None
    if stored is not None and not stored.enabled:
        en, ko = (
            f"({stored.reason or none}, {stored.changed_by})" for none in ("no reason", "사유 없음")
        )
        yield _Reason("kill_switch", f"the kill switch is on {en}", f"비상 정지가 켜짐 {ko}", True)
    elif seen.stored is not None and stored is None:
        text = "trading of this account was never allowed (qts kill off)"
        yield _Reason(
            "never_allowed", text, "이 계좌의 거래가 허용된 적이 없음 (qts kill off)", True
        )


def _safety(live: LiveStatus, seen: Observed) -> Iterator[_Reason]:
    """Yield the fail-safe of the database or, if that allows trading, the one the run applies."""
    if not live.safety.database_read:
        return
    found = list(_stored_safety(seen))
    yield from found or _fail_safe(live.safety)


def _stored_safety(seen: Observed) -> Iterator[_Reason]:
    if seen.stored is not None:
        yield from _fail_safe(seen.stored.safety)


def _fail_safe(worst: FailSafeStatus | SafetyStatus) -> Iterator[_Reason]:
    if worst.state in _BLOCKING:
        text = " ".join(filter(None, (worst.state, worst.code, worst.message)))
        short = " ".join(filter(None, (worst.state, worst.code)))  # the page says what a code means
        yield _Reason("fail_safe", f"the fail-safe is in {text}", f"안전 상태 {short}")


def _run(live: LiveStatus) -> Iterator[_Reason]:
    safety, feed = live.safety, live.feed
    if not safety.may_trade:
        text = "the ledger is not reconciled with the venue yet"
        yield _Reason("not_reconciled", text, "장부가 아직 대조되지 않음", True)
    if not safety.session_open:
        yield _Reason("session", "the market is closed", "장이 닫혀 있음", True)
    if safety.suspended:
        text = f"the pipeline is suspended ({safety.suspended})"
        yield _Reason("suspended", text, "사이클이 중지됨")
    if not safety.clock_synced:
        yield _Reason("clock", "the clock differs from the venue's", "거래소와 시각이 다름")
    if safety.session_open and feed is not None:
        age_s, limit_s = live.tick_age_s, SILENT_FEED_S + 2 * feed.interval_s
        if age_s is not None and age_s > limit_s:
            en, ko = _span(age_s)
            yield _Reason("feed", f"no price for {en}", f"{ko} 동안 시세 없음")


_LIMITS = {
    "daily_loss": ("the daily loss limit is reached", "일일 손실 한도 도달"),
    "orders_per_day": ("the orders of the day are used up", "일일 주문 수 소진"),
    "orders_per_minute": ("the orders of the minute are used up", "분당 주문 수 소진"),
    "max_open_symbols": ("no further symbol may be held", "보유 종목 수 한도 도달"),
    "max_exposure": ("no more of the equity may be invested", "투자 비중 한도 도달"),
}


def _limits(live: LiveStatus) -> Iterator[_Reason]:
    for each in live.limits:
        if each.is_reached:
            en, ko = _LIMITS.get(each.name, (f"{each.name} is reached", f"{each.name} 도달"))
            used, most = f"{each.used:,.0f}", f"{each.limit:,.0f}"
            yield _Reason(each.name, f"{en} ({used} of {most})", f"{ko} ({used}/{most})")


def _strategies(live: LiveStatus) -> Iterator[_Reason]:
    if not live.strategies:
        yield _Reason("no_strategy", "no strategy is configured", "설정된 전략이 없음")
    elif not any(map(_is_on, live.strategies)):
        yield _Reason("strategies_off", "every strategy is off", "모든 전략이 꺼짐")


_UNREAD = {  # by the source that could not be read
    "cache": "캐시를 읽을 수 없음",
    "database": "데이터베이스를 읽을 수 없음",
    "status": "실행의 상태를 해석할 수 없음",
}


def _silence(seen: Observed) -> tuple[str, str]:
    """Return why a run is silent, in both languages."""
    if "cache" in seen.problems:
        text = f"its status cannot be read ({seen.problems['cache']})"
        return text, "그 상태를 읽을 수 없습니다"
    if "status" in seen.problems:
        return seen.problems["status"], "그 상태를 해석할 수 없습니다"
    if seen.status_age_s is None:
        return "it has sent no status yet", "아직 상태를 보내지 않았습니다"
    en, ko = _span(seen.status_age_s)
    return f"its last status is {en} old", f"마지막 상태가 {ko} 전 것입니다"


def _last_status(seen: Observed) -> tuple[str, str]:
    if seen.status_age_s is None:
        return "", ""
    en, ko = _span(seen.status_age_s)
    return f", its last status is {en} old", f" (마지막 상태 {ko} 전)"


def _span(seconds: float) -> tuple[str, str]:
    """Return a span of time in both languages."""
    if seconds < 120:
        return f"{seconds:.0f} s", f"{seconds:.0f}초"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min", f"{seconds / 60:.0f}분"
    return f"{seconds / 3600:.0f} h", f"{seconds / 3600:.0f}시간"
