"""Replay of a journal through the router: the same messages, numbers and order, without pauses.

verified ── start ──▶ feeding ── end of the last file, or stop ──▶ draining ──▶ report
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from qts.domain import QtsError, RefusedError
from qts.router.journal import Contents, TornTail, journal_files, read_journal, verify_journal
from qts.router.progress import RunSnapshot
from qts.router.report import RouterReport
from qts.router.router import Router

_PUSH_SECONDS = 0.2  # latency of the end of a run


class JournalReplay:
    """Run for `watch_run` over a router that is live, keeps numbers, and is not started.

    Every file is verified before anything is sent, so a damaged journal is never half replayed.
    """

    def __init__(self, router: Router, path: Path) -> None:
        if not router.options.keep_numbers:
            raise RefusedError(
                "a replay needs a router with live=True and Options(keep_numbers=True)"
            )
        self._router = router
        self._files = [verify_journal(part) for part in journal_files(path)]
        for file in self._files:
            if unrouted := file.types - router.scenario.stage1.keys():
                raise RefusedError(
                    f"journal {file.path} holds messages of type {min(unrouted)}, which no rule of"
                    f" scenario {router.scenario.scenario} routes"
                )
        self._ending = threading.Event()
        self._failure: str | None = None
        self._feeder = threading.Thread(target=self._feed, name="qts replay", daemon=True)

    @property
    def messages(self) -> int:
        return sum(file.messages for file in self._files)

    def run(self) -> RouterReport:
        """Start, run to the end and report."""
        self.start()
        while not self.wait(_PUSH_SECONDS):
            pass
        return self.report

    def start(self) -> None:
        self._router.start()
        self._feeder.start()

    def snapshot(self) -> RunSnapshot:
        return self._router.snapshot()

    def stop(self) -> None:
        self._ending.set()
        self._router.stop()

    def abort(self) -> None:
        self._ending.set()
        self._router.abort()

    def wait(self, timeout: float) -> bool:
        if not self._router.wait(timeout):
            return False
        self._ending.set()
        self._feeder.join()
        return True

    @property
    def report(self) -> RouterReport:
        self.abort()
        self._feeder.join()
        report = self._router.report
        failed = () if self._failure is None else (self._failure,)
        return msgspec.structs.replace(
            report,
            offered=self.messages,
            failures=report.failures + failed,
            notes=(*self._notes(report), *report.notes),
        )

    def _feed(self) -> None:
        try:
            for number, file in enumerate(self._files):
                self._feed_file(number % self._router.scenario.stage1_routers, file)
        except QtsError as error:  # the file changed after it was verified
            self._failure = str(error)
        finally:
            self._router.stop()

    def _feed_file(self, source: int, file: Contents) -> None:
        for block in read_journal(file.path):
            if isinstance(block, TornTail):
                return
            sent = 0
            while sent < len(block):
                if self._ending.is_set():
                    return
                sent += self._router.push_many(block[sent:], source=source, timeout=_PUSH_SECONDS)

    def _notes(self, report: RouterReport) -> Iterator[str]:
        for file in self._files:
            yield f"replayed {file.path}: {file.messages:,} messages"
            if file.torn is not None:
                yield (
                    f"the end of {file.path} is torn: {file.torn.bytes:,} bytes from byte"
                    f" {file.torn.offset:,} on are part of a block and were skipped"
                )
        if report.produced < self.messages:
            yield f"{self.messages - report.produced:,} messages of the journal were never sent"
