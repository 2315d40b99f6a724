"""The tasks of a run: none ends before the stop, and an error of one ends the run.

Tells systemd how a run goes (Type=notify, WatchdogSec); without systemd it says nothing.

The watchdog is fed from the event loop: a loop that hangs is noticed, and systemd starts QTS again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from qts import telemetry

if TYPE_CHECKING:
    from qts.app.app import RunListener, StartupInfo


log = telemetry.logger("app")


class TaskSupervisor:
    """On one loop; `failed` is done when a task ended by an error."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)
        return task

    async def end(self, tasks: Iterable[asyncio.Task[None]] | None = None) -> None:
        """Cancel these, or all of them, and wait until they are gone."""
        ending = self._tasks if tasks is None else tasks
        waiting = [task for task in ending if not task.done()]
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.failed.done():
            log.error("a part ended by an error", part=task.get_name(), error=repr(error))
            self.failed.set_exception(error)


def sd_notify(state: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Send one line such as READY=1; False where nobody listens."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address[0] == "@":  # an abstract socket
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.setblocking(False)
        out.sendto(state.encode(), address)
        return True
    return False


def watchdog_s(environ: Mapping[str, str] = os.environ) -> float | None:
    """How often systemd wants to hear from this process; half of what it waits."""
    wait_us, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID")
    if not wait_us.isdigit() or not int(wait_us) or (pid and pid != str(os.getpid())):
        return None
    return int(wait_us) / 2e6


async def ping_watchdog(environ: Mapping[str, str] = os.environ) -> None:
    """Until it is cancelled; ends at once where there is no watchdog."""
    every_s = watchdog_s(environ)
    while every_s is not None:
        sd_notify("WATCHDOG=1", environ)
        await asyncio.sleep(every_s)


class SystemdListener:
    """A Watcher that tells systemd as well."""

    def __init__(self, watcher: RunListener, environ: Mapping[str, str] = os.environ) -> None:
        self._watcher = watcher
        self._environ = environ

    def starting(self) -> None:
        self._watcher.starting()

    def ready(self, ready: StartupInfo) -> None:
        self._watcher.ready(ready)
        words = " ".join(ready.trading.split()) or "the servers run; nothing is traded"
        sd_notify(f"READY=1\nSTATUS={words}", self._environ)

    def stopping(self) -> None:
        sd_notify("STOPPING=1", self._environ)
        self._watcher.stopping()
