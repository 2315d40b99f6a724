"""Commands that the operator sends to the Telegram bot of a run.

    getUpdates ─▶ allowed? ─▶ recorded as handled ─▶ recent? ─▶ below the limit? ─▶ command
                   no: ignored, counted                                 ├─▶ text
                                                                        └─▶ question with a code
    button, /confirm CODE ─▶ allowed? ─▶ recorded as handled ─▶ same author, in time? ─▶ act

An update is recorded in PostgreSQL before its command runs, so that one that Telegram sends again,
after a crash too, does nothing. An offset only confirms what was received; it is never stored,
because Telegram begins with other ids after a week without updates.

Answers leave by a separate queue: a slow or limited Telegram delays no command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import NAMESPACE_URL, uuid5

import aiohttp
import msgspec

from qts import telemetry
from qts.database import Database
from qts.domain import Clock, OperationError, RefusedError, Secret, name_choices
from qts.notify.config import NotifyConfig
from qts.notify.message import RetryLaterError
from qts.notify.telegram_api import (
    COMMANDS_PER_MINUTE,
    CONFIRM_WITHIN_S,
    MAX_CHARS,
    CallbackQuery,
    Caller,
    CommandLimit,
    Confirmation,
    PendingConfirmations,
    TelegramApi,
    TelegramMessage,
    Update,
    is_allowed,
)
from qts.outbox import mark_handled

log = telemetry.logger("notify")

MAX_AGE_S = 60.0  # an older command, sent while nothing read it, is not run
READ_TIMEOUT_S = 2.0
ACT_TIMEOUT_S = 10.0
LONG_TIMEOUT_S = 60.0  # longer than the wait for a manual command
BACKOFF_S = (1.0, 30.0)  # first, maximum
RESTART_INTERVAL_S = 5.0
MAX_REPLIES = 100
REPLY_TTL_S = 60.0
HANDLER = "telegram command"  # in outbox_handled
NOT_CONFIRMED = (
    f"Nothing was done: only the author can confirm, once and within {CONFIRM_WITHIN_S:.0f} s."
)
STARTED = "Confirmed; the result follows."
_CONFIRM, _CANCEL = "confirm", "cancel"
_T = TypeVar("_T")

_updates = telemetry.counter(
    "qts_telegram_updates_total", "Updates of the Telegram bot by result.", ("result",)
)


class BotCommand(msgspec.Struct, frozen=True, kw_only=True):
    """Command of the operator; `run` returns the answer, or what must be confirmed first."""

    name: str
    alias: str  # in Korean
    usage: str  # of its argument
    help: str
    run: Callable[[Caller, str], Awaitable[str | Confirmation]]


class TelegramBot:
    """Runs the commands of allowed users until cancelled; trading does not depend on it."""

    def __init__(
        self,
        config: NotifyConfig,
        token: Secret,
        database: Database,
        commands: Sequence[BotCommand],
        clock: Clock,
    ) -> None:
        self._config = config
        self._token = token
        self._database = database
        self._clock = clock
        self._commands = {each.name: each for each in commands}
        self._aliases = {each.alias: each.name for each in commands}
        self._limit = CommandLimit(clock)
        self._pending = PendingConfirmations(clock)
        self._expired: dict[Caller, list[str]] = {}  # commands of this batch
        self._replies = _Replies(clock)
        self._group: asyncio.TaskGroup | None = None  # of what runs beside the polls
        for result in ("handled", "ignored", "repeated", "expired", "limited"):
            _updates.labels(result)

    async def run(self) -> None:
        """Poll and answer; an error restarts both and does not stop trading."""
        timeout = aiohttp.ClientTimeout(total=self._config.timeout_s)
        while True:
            try:
                async with (
                    aiohttp.ClientSession(timeout=timeout) as session,
                    asyncio.TaskGroup() as group,
                ):
                    api = TelegramApi(session, self._token, self._config.telegram.url)
                    self._group = group
                    group.create_task(self._replies.run(api))
                    group.create_task(self._poll(api))
            except* Exception:
                log.error("telegram commands failed; restarting", exc_info=True)
            await self._clock.sleep(RESTART_INTERVAL_S)

    async def _poll(self, api: TelegramApi) -> None:
        offset: int | None = None
        backoff = _Backoff()
        while True:
            try:
                updates = await api.updates(offset)
                if not updates:
                    offset = None
                for update in updates:
                    offset = update.update_id  # sent again if the next line fails
                    await self._handle(api.bot, update)
                    offset = update.update_id + 1
                self._report_expired()
                backoff = _Backoff()
            except (OperationError, TimeoutError) as error:
                pause_s = backoff.pause_s(error)
                log.warning(
                    "telegram updates not read; retrying",
                    error=str(error) or "timeout",
                    retry_in_s=pause_s,
                )
                await self._clock.sleep(pause_s)

    def _report_expired(self) -> None:
        """Name the commands of a batch that were too old to be run, in one answer per author."""
        for caller, names in self._expired.items():
            shown = ", ".join(names[:5]) + (
                f" and {more} more" if (more := len(names) - 5) > 0 else ""
            )
            text = f"Not run, because read more than {MAX_AGE_S:.0f} s after it was sent: {shown}."
            self._say(caller, f"{text} Send it again if you still want it.")
        self._expired = {}

    # --- one update -----------------------------------------------------------------------------

    async def _handle(self, bot: str, update: Update) -> None:
        """Handle an update; raise OperationError or TimeoutError if it could not be recorded."""
        message, press = update.message, update.callback_query
        given = press or message
        where = press.message if press else message
        if given is None or where is None or (message and not message.text.startswith("/")):
            return
        caller = Caller(given.sender.id if given.sender else 0, where.chat.id)
        if not is_allowed(self._config.telegram, caller):
            self._ignore(caller)
            return
        async with asyncio.timeout(ACT_TIMEOUT_S), self._database.transaction() as tx:
            is_new = await mark_handled(
                tx, uuid5(NAMESPACE_URL, f"{bot} {update.update_id}"), HANDLER
            )
        if not is_new:
            _updates.labels("repeated").inc()
        elif press:
            _updates.labels("handled").inc()
            await self._on_press(caller, press, where)
        else:
            await self._on_message(caller, where)

    def _ignore(self, caller: Caller) -> None:
        _updates.labels("ignored").inc()
        if due := telemetry.log_every(60.0, "telegram sender"):
            log.warning(
                "telegram command ignored; sender not allowed",
                user=caller.user,
                chat=caller.chat,
                **due,
            )

    async def _on_message(self, caller: Caller, message: TelegramMessage) -> None:
        words = message.text[1:].split() or [""]
        name, argument = words[0].partition("@")[0].lower(), " ".join(words[1:])
        name = self._aliases.get(name, name)
        age_s = self._clock.now().timestamp() - message.date
        if age_s > MAX_AGE_S:
            _updates.labels("expired").inc()
            self._expired.setdefault(caller, []).append(f"/{name[:20]}")
        elif name == _CONFIRM:
            _updates.labels("handled").inc()
            self._say(caller, await self._confirm(caller, argument))
        elif self._limit.admits(caller.user):
            _updates.labels("handled").inc()
            await self._run_command(caller, name, argument)
        else:
            _updates.labels("limited").inc()
            if self._limit.is_report_due(caller.user):
                self._say(caller, f"Too many commands: at most {COMMANDS_PER_MINUTE} a minute.")

    async def _run_command(self, caller: Caller, name: str, argument: str) -> None:
        log.info("telegram command", command=name[:20], actor=caller.actor)
        command = self._commands.get(name)
        if name in ("help", "start"):
            self._say(caller, self._help())
            return
        if command is None:
            known = name_choices(name, [*self._commands, "help"])
            self._say(caller, f"/{name[:20]} is unknown; expected one of {known}")
            return
        found = await _bounded(command.run(caller, argument), READ_TIMEOUT_S)
        if not isinstance(found, Confirmation):
            self._say(caller, found)
            return
        code = self._pending.add(caller, found)
        buttons = [
            {"text": text, "callback_data": f"{verb}:{code}"}
            for verb, text in ((_CONFIRM, "Confirm"), (_CANCEL, "Cancel"))
        ]
        within = f"Confirm within {CONFIRM_WITHIN_S:.0f} s, or send /confirm {code}"
        self._say(
            caller, f"{found.question}\n{within}", reply_markup={"inline_keyboard": [buttons]}
        )

    async def _confirm(self, caller: Caller, code: str) -> str:
        found = self._pending.take(caller, code)
        return NOT_CONFIRMED if found is None else await self._act(caller, found)

    async def _act(self, caller: Caller, confirmed: Confirmation) -> str:
        """Return what was done; a long action is started, and its result is sent when it ends."""
        if not confirmed.is_long or self._group is None:
            return await _bounded(confirmed.act(), ACT_TIMEOUT_S)

        async def act() -> None:
            self._say(caller, await _bounded(confirmed.act(), LONG_TIMEOUT_S))

        self._group.create_task(act())
        return STARTED

    async def _on_press(
        self, caller: Caller, press: CallbackQuery, question: TelegramMessage
    ) -> None:
        verb, _, code = press.data.partition(":")
        found = self._pending.take(caller, code) if verb in (_CONFIRM, _CANCEL) else None
        answer = {"callback_query_id": press.id}
        if found is None:
            text = {"text": NOT_CONFIRMED, "show_alert": True}
            self._replies.add("answerCallbackQuery", answer | text)
            return
        self._replies.add("answerCallbackQuery", answer)
        done = "Cancelled."
        if verb == _CONFIRM:
            done = await self._act(caller, found)
        body = {"chat_id": caller.chat, "message_id": question.message_id}
        self._replies.add(
            "editMessageText", body | {"text": f"{found.question}\n{done}"[:MAX_CHARS]}
        )

    def _say(self, caller: Caller, text: str, **more: Any) -> None:
        body = {"chat_id": caller.chat, "text": text[:MAX_CHARS] or "-"}
        options = {"link_preview_options": {"is_disabled": True}}
        self._replies.add("sendMessage", body | options | more)

    def _help(self) -> str:
        lines = [
            f"/{' '.join(filter(None, (each.name, each.usage)))} (/{each.alias}): {each.help}"
            for each in self._commands.values()
        ]
        return "\n".join(lines)


async def _bounded(work: Awaitable[_T], timeout_s: float) -> _T | str:
    """Return the result, or a sentence for the operator that says why there is none."""
    try:
        async with asyncio.timeout(timeout_s):
            return await work
    except RefusedError as error:
        return f"Refused: {error}"
    except OperationError as error:
        return f"Failed: {error}"
    except TimeoutError:
        return f"No result within {timeout_s:g} s; see /status."
    except Exception:
        log.error("telegram command failed", exc_info=True)
        return "Failed; see the log of QTS."


class _Backoff:
    """Growing pauses after failures, at least as long as Telegram demands."""

    def __init__(self) -> None:
        self._last_s = 0.0

    def pause_s(self, error: Exception) -> float:
        first, maximum = BACKOFF_S
        self._last_s = min(self._last_s * 2 or first, maximum)
        return max(self._last_s, error.after_s if isinstance(error, RetryLaterError) else 0.0)


class _Replies:
    """Queue of answers, sent in their order; one that cannot be sent for a minute is dropped."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queue: asyncio.Queue[tuple[int, str, Mapping[str, Any]]] = asyncio.Queue(MAX_REPLIES)

    def add(self, method: str, body: Mapping[str, Any]) -> None:
        until_ns = self._clock.monotonic_ns() + round(REPLY_TTL_S * 1e9)
        try:
            self._queue.put_nowait((until_ns, method, body))
        except asyncio.QueueFull:
            log.warning("telegram answer dropped; queue full", method=method)

    async def run(self, api: TelegramApi) -> None:
        while True:
            until_ns, method, body = await self._queue.get()
            backoff = _Backoff()
            while self._clock.monotonic_ns() < until_ns:
                try:
                    await api.call(method, body)
                    break
                except RetryLaterError as error:
                    pause_s = backoff.pause_s(error)
                    log.warning(
                        "telegram answer not sent; retrying",
                        method=method,
                        error=str(error),
                        retry_in_s=pause_s,
                    )
                    await self._clock.sleep(pause_s)
                except OperationError as error:
                    log.warning("telegram answer declined", method=method, error=str(error))
                    break
            else:
                log.warning("telegram answer dropped; too old", method=method)
