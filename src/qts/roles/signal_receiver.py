"""Signals of another process into the pipeline of an account.

    SignalMessage ─▶ known id: a duplicate, nothing to do
                  ─▶ entry that is too old: stale; entry of an outdated view: outdated
                  ─▶ the rest ─▶ pipeline ─▶ dropped, refused or acted on ─▶ acknowledged

A message that was acted on and not acknowledged comes again, after `kill -9` too. Its signals have
the ids of their intents, so that the ledger stores none of them twice.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from qts import telemetry
from qts.domain import AccountKey, Clock
from qts.pipeline import EtedaPipeline
from qts.roles.connection import SIGNALS, RoleConnection
from qts.roles.durable import DurableReceiver
from qts.roles.messages import SignalMessage, decode_signals
from qts.roles.report_sender import RemoteRunner, ReportSender
from qts.strategies import Cancel, Instruction, Replace, Signal

MAX_REMEMBERED = 10_000

log = telemetry.logger("roles")


class SignalReceiver:
    """Receiver of one account's signals, on one event loop; `run` until cancelled."""

    def __init__(
        self,
        connection: RoleConnection,
        pipeline: EtedaPipeline,
        runners: Mapping[str, RemoteRunner],
        reports: ReportSender,
        clock: Clock,
        signal_ttl_s: float,
    ) -> None:
        self._counts = connection.status
        self._connection = connection
        self._pipeline = pipeline
        self._runners = runners
        self._reports = reports
        self._clock = clock
        self._ttl_s = signal_ttl_s
        self._handled: OrderedDict[str, None] = OrderedDict()  # ids of messages

    async def run(self, account: AccountKey) -> None:
        subject = SIGNALS.of(account)
        await DurableReceiver(self._connection, SIGNALS, subject, self.handle).run()

    async def handle(self, data: bytes) -> bool:
        """Pass a message to the pipeline; return True once everything in it took effect."""
        try:
            message = decode_signals(data)
        except msgspec.MsgspecError as error:
            self._counts.refused += 1
            log.error("signal not readable; dropped", error=str(error))
            return True
        runner = self._runners.get(message.strategy_key)
        if message.id in self._handled:
            self._counts.duplicates += 1
            return True
        self._handled[message.id] = None
        if len(self._handled) > MAX_REMEMBERED:
            self._handled.popitem(last=False)
        self._counts.signals_received += 1
        if runner is None:
            self._counts.refused += 1
            log.error("signal of an unknown strategy; dropped", strategy=message.strategy_key)
            return True
        try:
            await self._act(runner, message)
        except BaseException:
            self._handled.pop(message.id, None)  # it comes again
            raise
        return True

    async def _act(self, runner: RemoteRunner, message: SignalMessage) -> None:
        signals: list[Signal] = []
        changes: list[Cancel | Replace] = []
        for each in message.instructions:
            if isinstance(each, Signal):
                if each not in signals and self._is_accepted(each, message):
                    signals.append(each)
            else:
                changes.append(each)
        runner.signals += len(signals)
        started = self._pipeline.change_orders(runner, changes)
        left = len(signals)
        settled = asyncio.get_running_loop().create_future()

        def settle(_signal: Signal) -> None:
            nonlocal left
            left -= 1
            if not left and not settled.done():
                settled.set_result(None)

        if signals:
            self._pipeline.on_signals(
                runner, signals, after_order=message.after_order, settled=settle
            )
            await settled
        if started:
            await asyncio.wait(started)

    def _is_accepted(self, signal: Instruction, message: SignalMessage) -> bool:
        """Return whether a signal may be acted on; an exit always may."""
        if not isinstance(signal, Signal) or signal.intent_type.is_exit:
            return True
        age_s = self._clock.now().timestamp() - message.decided_at
        if age_s > self._ttl_s:
            self._counts.signals_stale += 1
            log.warning(
                "entry signal too old; refused",
                strategy=message.strategy_key,
                symbol=signal.symbol,
                duration_s=round(age_s, 3),
            )
            return False
        if self._reports.is_outdated(signal.symbol, message.seen):
            self._counts.signals_outdated += 1
            return False
        return True
