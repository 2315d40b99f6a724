"""Commands by Telegram against a local Bot API: who may act, how often, and exactly once."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import pytest

from qts import telemetry
from qts.database import Database
from qts.domain import ConfigError, RefusedError, Secret, SystemClock, UnreachableError
from qts.notify import BotCommand, Caller, Confirmation, NotifyConfig, TelegramBot, TelegramConfig
from qts.notify import telegram_bot as bot_module
from qts.notify.telegram_bot import NOT_CONFIRMED, STARTED
from qts.outbox import mark_handled
from qts.telemetry import TelemetryConfig
from tests.notify.bot_api import CHAT, CUT, OWNER, TOKEN, BotApi

FRIEND = 43


class ShiftedClock(SystemClock):
    """System clock that a test moves; a sleep moves it instead of waiting."""

    def __init__(self) -> None:
        self.shift_s = 0.0
        self.slept: list[float] = []

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.shift_s)

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + round(self.shift_s * 1e9)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.shift_s += seconds
        await asyncio.sleep(0.001)


class Bot:
    """A bot with commands that record what they did."""

    def __init__(self, api: BotApi, database: Database, clock: ShiftedClock) -> None:
        self.api = api
        self.clock = clock
        self.database = database
        self.ran: list[str] = []
        self.acted: list[str] = []
        self.started = asyncio.Event()
        self.closed = asyncio.Event()

    def commands(self) -> list[BotCommand]:
        async def status(caller: Caller, argument: str) -> str:
            self.ran.append(f"{caller.actor} {argument}".strip())
            return "fine"

        async def kill(caller: Caller, argument: str) -> str | Confirmation:
            if not argument:
                raise RefusedError("/kill needs a reason")

            async def act() -> str:
                self.acted.append(f"{caller.actor} {argument}")
                return "stopped"

            return Confirmation(f"Stop? {argument}", act)

        async def close(caller: Caller, argument: str) -> Confirmation:
            async def act() -> str:
                self.acted.append(f"{caller.actor} {argument}")
                await self.closed.wait()
                return "sold"

            return Confirmation(f"Close? {argument}", act, is_long=True)

        async def hang(_caller: Caller, _argument: str) -> str:
            self.ran.append("hang")
            self.started.set()
            await asyncio.Event().wait()
            return ""

        async def fail(_caller: Caller, _argument: str) -> str:
            raise ZeroDivisionError(TOKEN)

        runs = {"status": status, "kill": kill, "close": close, "hang": hang, "fail": fail}
        return [
            BotCommand(name=name, alias=f"별칭{name}", usage="", help=f"about {name}", run=run)
            for name, run in runs.items()
        ]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        telegram = TelegramConfig(
            token=Secret(TOKEN),
            chat=str(CHAT),
            url=self.api.url,
            command_users=(OWNER, FRIEND),
            command_chats=(CHAT, -77),
        )
        config = NotifyConfig(telegram=telegram)
        bot = TelegramBot(config, Secret(TOKEN), self.database, self.commands(), self.clock)
        task = asyncio.create_task(bot.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})


@pytest.fixture
async def bot(database: Database) -> AsyncIterator[Bot]:
    clock = ShiftedClock()
    async with BotApi(clock).serving() as api:
        yield Bot(api, database, clock)


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    found = io.StringIO()
    telemetry.configure(TelemetryConfig(log_level="debug", log_format="json"), found)
    try:
        yield found
    finally:
        telemetry.shutdown()


def count(result: str) -> float:
    return bot_module._updates.labels(result)._value.get()  # type: ignore[no-any-return]


async def test_an_allowed_user_gets_an_answer_in_the_chat(bot: Bot) -> None:
    async with bot.running():
        await bot.api.send("/status", "/status@any_bot  now", "/별칭status", chat=-77)
        assert await bot.api.until_said(3) == ["fine"] * 3
    assert bot.ran == [f"telegram:{OWNER}", f"telegram:{OWNER} now", f"telegram:{OWNER}"]
    assert {body["chat_id"] for _, body in bot.api.calls} == {-77}
    assert "parse_mode" not in bot.api.calls[0][1]


async def test_help_and_unknown_commands_name_what_is_allowed(bot: Bot) -> None:
    async with bot.running():
        await bot.api.send("/help", "/stauts", "/", "/kill", "just talk")
        texts = await bot.api.until_said(4)
    assert "/kill (/별칭kill): about kill" in texts[0]
    assert texts[1].startswith("/stauts is unknown; expected one of status, kill")
    assert texts[1].endswith("did you mean status?")
    assert texts[3] == "Refused: /kill needs a reason"


async def test_others_get_no_answer_and_are_counted(bot: Bot, lines: io.StringIO) -> None:
    before = count("ignored")
    async with bot.running():
        await bot.api.send("/kill now", user=99)
        await bot.api.send("/kill now", chat=9900)
        await bot.api.send("/kill now", user=None)
        await bot.api.press(user=99, data="confirm:00000000")
        await bot.api.send("/status")
        assert await bot.api.until_said(1) == ["fine"]
    assert len(bot.api.calls) == 1
    assert count("ignored") - before == 4
    assert lines.getvalue().count("sender not allowed") <= 1  # a minute


async def test_a_confirmed_command_acts_once(bot: Bot) -> None:
    async with bot.running():
        await bot.api.send("/kill leaving")
        (question,) = await bot.api.until_said(1)
        assert question.startswith("Stop? leaving\n")
        assert bot.acted == []
        await bot.api.press()
        assert await bot.api.until_said(1, "editMessageText") == ["Stop? leaving\nstopped"]
        await bot.api.press()
        answers = await bot.api.until_said(2, "answerCallbackQuery")
        await bot.api.send(f"/confirm {bot.api.code}")
        assert (await bot.api.until_said(2))[-1] == NOT_CONFIRMED
    assert answers == ["", NOT_CONFIRMED]
    assert bot.acted == [f"telegram:{OWNER} leaving"]


async def test_a_typed_code_confirms_too(bot: Bot) -> None:
    async with bot.running():
        await bot.api.send("/kill leaving")
        await bot.api.until_said(1)
        await bot.api.send("/confirm 00000000")
        await bot.api.until_said(2)
        await bot.api.send(f"/confirm {bot.api.code}")
        assert (await bot.api.until_said(3))[1:] == [NOT_CONFIRMED, "stopped"]
    assert len(bot.acted) == 1


async def test_a_long_action_delays_no_other_command(bot: Bot) -> None:
    async with bot.running():
        await bot.api.send("/close 005930")
        await bot.api.until_said(1)
        await bot.api.press()
        edited = await bot.api.until_said(1, "editMessageText")
        assert edited == [f"Close? 005930\n{STARTED}"]
        await bot.api.send("/status", "/kill leaving")
        assert (await bot.api.until_said(3))[1] == "fine"
        await bot.api.press()
        assert (await bot.api.until_said(2, "editMessageText"))[1].endswith("stopped")
        bot.closed.set()
        assert (await bot.api.until_said(4))[3] == "sold"
    assert bot.acted == [f"telegram:{OWNER} 005930", f"telegram:{OWNER} leaving"]


async def test_a_typed_code_starts_a_long_action(bot: Bot) -> None:
    bot.closed.set()
    async with bot.running():
        await bot.api.send("/close 005930")
        await bot.api.until_said(1)
        await bot.api.send(f"/confirm {bot.api.code}")
        assert (await bot.api.until_said(3))[1:] == [STARTED, "sold"]


async def test_a_long_action_that_does_not_end_is_reported(
    bot: Bot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bot_module, "LONG_TIMEOUT_S", 0.05)
    async with bot.running():
        await bot.api.send("/close 005930")
        await bot.api.until_said(1)
        await bot.api.press()
        assert (await bot.api.until_said(2))[1] == "No result within 0.05 s; see /status."


async def test_a_cancelled_command_does_nothing(bot: Bot) -> None:
    async with bot.running():
        await bot.api.send("/kill leaving")
        await bot.api.until_said(1)
        await bot.api.press("cancel")
        assert await bot.api.until_said(1, "editMessageText") == ["Stop? leaving\nCancelled."]
        await bot.api.press("confirm")
        await bot.api.until_said(2, "answerCallbackQuery")
    assert bot.acted == []


async def test_a_confirmation_by_another_user_or_in_another_chat_does_nothing(bot: Bot) -> None:
    async with bot.running():
        await bot.api.send("/kill leaving")
        await bot.api.until_said(1)
        await bot.api.press(user=FRIEND)
        await bot.api.press(chat=-77)
        assert await bot.api.until_said(2, "answerCallbackQuery") == [NOT_CONFIRMED] * 2
        assert bot.acted == []
        await bot.api.press()
        await bot.api.until_said(1, "editMessageText")
    assert bot.acted == [f"telegram:{OWNER} leaving"]


async def test_a_late_confirmation_does_nothing(bot: Bot) -> None:
    async with bot.running():
        await bot.api.send("/kill leaving")
        await bot.api.until_said(1)
        bot.clock.shift_s += 30
        await bot.api.press()
        assert await bot.api.until_said(1, "answerCallbackQuery") == [NOT_CONFIRMED]
    assert bot.acted == []


async def test_a_restart_ends_what_was_not_confirmed(bot: Bot) -> None:
    async with bot.running():
        await bot.api.send("/kill leaving")
        await bot.api.until_said(1)
    async with bot.running():
        await bot.api.press()
        assert await bot.api.until_said(1, "answerCallbackQuery") == [NOT_CONFIRMED]
    assert bot.acted == []


async def test_an_update_that_is_sent_again_does_nothing(bot: Bot) -> None:
    before = count("repeated")
    async with bot.running():
        await bot.api.send("/status", "/kill leaving")
        await bot.api.until_said(2)
        await bot.api.press()
        await bot.api.until_said(1, "editMessageText")
    async with bot.running():
        await bot.api.deliver(*bot.api.history)
        await bot.api.send("/status again")
        await bot.api.until_said(3)
    assert bot.ran == [f"telegram:{OWNER}", f"telegram:{OWNER} again"]
    assert len(bot.acted) == 1
    assert len(bot.api.texts()) == 3
    assert count("repeated") - before >= 3


async def test_a_command_that_a_crash_cut_off_does_not_run_again(bot: Bot) -> None:
    async with bot.running():
        await bot.api.send("/hang")
        await bot.started.wait()  # recorded, running, not confirmed to Telegram
    async with bot.running():
        await bot.api.send("/status")
        await bot.api.until_said(1)
    assert bot.ran == ["hang", f"telegram:{OWNER}"]


async def test_lower_ids_after_a_quiet_week_are_new_commands(bot: Bot) -> None:
    async with bot.running():
        await bot.api.send("/status")
        await bot.api.until_said(1)
        bot.api._next_id = 10
        await bot.api.send("/status later")
        await bot.api.until_said(2)
    assert bot.ran[-1] == f"telegram:{OWNER} later"


async def test_old_commands_are_not_run_and_named_in_one_answer(bot: Bot) -> None:
    await bot.api.send("/kill now", *["/status"] * 6, age_s=61)
    await bot.api.send("/status", age_s=50)
    async with bot.running():
        texts = await bot.api.until_said(2)
    assert texts[0] == "fine"
    assert "/kill, /status, /status, /status, /status and 2 more" in texts[1]
    assert bot.ran == [f"telegram:{OWNER}"]
    assert bot.acted == []


async def test_a_hundred_commands_a_minute_get_twenty_answers_and_one_refusal(bot: Bot) -> None:
    async with bot.running():
        await bot.api.send(*["/status"] * 100)
        await bot.api.until_said(21)
        await bot.api.send("/status", user=FRIEND)
        texts = await bot.api.until_said(22)
        assert texts == [*["fine"] * 20, "Too many commands: at most 20 a minute.", "fine"]
        bot.clock.shift_s += 60
        await bot.api.send("/status")
        await bot.api.until_said(23)
    assert len(bot.ran) == 22


async def test_a_confirmation_is_not_limited(bot: Bot) -> None:
    async with bot.running():
        await bot.api.send(*["/status"] * 19, "/kill leaving", "/status")
        await bot.api.until_said(21)
        await bot.api.press()
        await bot.api.until_said(1, "editMessageText")
    assert len(bot.acted) == 1


@pytest.mark.parametrize("status", [429, 500, 502, 401, 404, 409, CUT])
async def test_polling_survives_errors_and_shows_no_token(
    bot: Bot, lines: io.StringIO, status: int
) -> None:
    bot.api.failures["getUpdates"].extend([status] * 3)
    async with bot.running():
        await bot.api.send("/status")
        assert await bot.api.until_said(1) == ["fine"]
    assert len(bot.clock.slept) == 3
    if status == 429:
        assert min(bot.clock.slept) >= 7
    assert "telegram updates not read; retrying" in lines.getvalue()
    assert "canary" not in lines.getvalue()


@pytest.mark.parametrize("status", [429, 503, CUT])
async def test_an_answer_is_sent_again_and_delays_no_command(bot: Bot, status: int) -> None:
    bot.api.failures["sendMessage"].extend([status] * 2)
    async with bot.running():
        await bot.api.send("/status", "/status second")
        assert await bot.api.until_said(2) == ["fine"] * 2
    if status == 429:
        assert bot.clock.slept == [7, 7]


async def test_a_declined_answer_is_dropped(bot: Bot, lines: io.StringIO) -> None:
    bot.api.failures["sendMessage"].append(400)
    async with bot.running():
        await bot.api.send("/status", "/status second")
        await bot.api.until_said(1)
    assert len(bot.ran) == 2
    assert "telegram answer declined" in lines.getvalue()
    assert "canary" not in lines.getvalue()


async def test_a_command_that_raises_costs_only_its_answer(bot: Bot) -> None:
    async with bot.running():
        await bot.api.send("/fail", "/status")
        assert await bot.api.until_said(2) == ["Failed; see the log of QTS.", "fine"]


async def test_a_command_that_hangs_is_ended(bot: Bot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bot_module, "READ_TIMEOUT_S", 0.05)
    async with bot.running():
        await bot.api.send("/hang", "/status")
        texts = await bot.api.until_said(2)
    assert texts == ["No result within 0.05 s; see /status.", "fine"]


async def test_a_command_waits_for_a_database_that_was_away(
    bot: Bot, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = [UnreachableError("gone"), UnreachableError("gone")]

    async def marked(*arguments: object) -> bool:
        if away:
            raise away.pop()
        return await mark_handled(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(bot_module, "mark_handled", marked)
    async with bot.running():
        await bot.api.send("/status first", "/status second")
        await bot.api.until_said(2)
    assert bot.ran == [f"telegram:{OWNER} first", f"telegram:{OWNER} second"]


async def test_an_update_of_an_unknown_form_is_skipped(bot: Bot) -> None:
    async with bot.running():
        await bot.api.deliver({"update_id": 7, "message": {"text": 1}}, {"update_id": 8})
        await bot.api.send("/status")
        assert await bot.api.until_said(1) == ["fine"]


@pytest.mark.parametrize(
    ("telegram", "problem"),
    [
        (
            {"command_users": (1,), "token": Secret("t"), "chat": "1"},
            "notify.telegram.command_chats is not set; notify.telegram.command_users needs it",
        ),
        (
            {"command_chats": (1,), "token": Secret("t"), "chat": "1"},
            "notify.telegram.command_users is not set; notify.telegram.command_chats needs it",
        ),
        (
            {"command_chats": (1,), "command_users": (1,)},
            "notify.telegram.token is not set; notify.telegram.command_users needs it",
        ),
    ],
)
def test_incomplete_settings_are_refused(telegram: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        NotifyConfig(telegram=TelegramConfig(**telegram)).check()  # type: ignore[arg-type]
