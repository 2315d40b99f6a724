"""Laws of the limit on commands and of confirmations, in any order of events."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from qts.domain import ManualClock
from qts.notify import Caller, Confirmation, TelegramConfig
from qts.notify.telegram_api import (
    COMMANDS_PER_MINUTE,
    CONFIRM_WITHIN_S,
    CommandLimit,
    PendingConfirmations,
    is_allowed,
)

CALLERS = [Caller(user, chat) for user in (1, 2) for chat in (10, 20)]


async def nothing() -> str:
    return ""


class SteppedClock(ManualClock):
    """Clock that a plain function moves."""

    seconds = 0.0

    def monotonic_ns(self) -> int:
        return round(self.seconds * 1e9)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "take", "wait"]),
            st.sampled_from(CALLERS),
            st.integers(0, 9),  # which of the codes so far
            st.sampled_from([0.0, 1.0, 29.9, 30.0]),
        ),
        max_size=40,
    )
)
def test_only_the_author_confirms_once_in_time_and_only_the_last(
    steps: list[tuple[str, Caller, int, float]],
) -> None:
    clock = SteppedClock()
    pending = PendingConfirmations(clock)
    asked: list[tuple[str, Caller, float, Confirmation]] = []
    taken: set[str] = set()
    for what, caller, index, wait_s in steps:
        if what == "wait":
            clock.seconds += wait_s
        elif what == "add":
            confirmation = Confirmation("?", nothing)
            asked.append((pending.add(caller, confirmation), caller, clock.seconds, confirmation))
        elif asked:
            code, author, at, confirmation = asked[index % len(asked)]
            last = next(each for each in reversed(asked) if each[1] == author)[0]
            may = (
                caller == author
                and code == last
                and code not in taken
                and clock.seconds - at < CONFIRM_WITHIN_S
            )
            assert pending.take(caller, code) is (confirmation if may else None)
            if caller == author and code == last:
                taken.add(code)


@given(st.lists(st.sampled_from([0.0, 0.5, 3.0, 59.0, 60.0]), min_size=30, max_size=120))
def test_no_minute_has_more_commands_than_allowed(waits: list[float]) -> None:
    clock = SteppedClock()
    limit = CommandLimit(clock)
    admitted: list[float] = []
    reported: list[float] = []
    for wait_s in waits:
        clock.seconds += wait_s
        if limit.admits(1):
            admitted.append(clock.seconds)
        elif limit.is_report_due(1):
            reported.append(clock.seconds)
    pairs = zip(admitted, admitted[COMMANDS_PER_MINUTE:], strict=False)
    assert all(last - first >= 60 - 1e-6 for first, last in pairs)
    assert all(b - a >= 60 - 1e-6 for a, b in pairwise(reported))


@given(st.lists(st.integers(1, 5)), st.lists(st.integers(-5, 5)), st.integers(), st.integers())
def test_user_and_chat_must_both_be_listed(
    users: list[int], chats: list[int], user: int, chat: int
) -> None:
    config = TelegramConfig(command_users=tuple(users), command_chats=tuple(chats))
    assert is_allowed(config, Caller(user, chat)) == (user in users and chat in chats)
