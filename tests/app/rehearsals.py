"""A rehearsal on a simulator of this process, which the test can ask what it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from qts.app import RehearsalOptions, rehearse
from qts.app.rehearsal import REHEARSALS
from qts.brokers import RehearsalStep
from qts.brokers.rehearsal_orders import RehearsalTimes
from qts.config import Config, load
from qts.domain import Secret, SystemClock
from tests.acceptance.venues import SimulatedAccount

TIMES = RehearsalTimes(seen_s=3.0, absent_s=1.0, withdraw_s=20.0, poll_s=0.02)
STEPS = ["hours", "balance", "clock", "orders", "price", "funds", "stream", "test", "order"]
STEPS += ["change", "cancel", "end"]


def config_of(account: SimulatedAccount, folder: Path, database: Secret, **more: str) -> Config:
    environ = {
        **account.settings(folder),
        "QTS_HOME": str(folder / "home"),
        "QTS_DATABASE__URL": database.reveal(),
        f"QTS_VENUES__{account.name.upper()}__TIMEOUT_S": "3.0",
        **more,
    }
    return load(None, environ)


@dataclass
class Operator:
    """Listener that confirms; `before` is called with the name of each step."""

    before: Callable[[str], Any] = lambda _step: None
    declined: str = ""
    steps: list[RehearsalStep] = field(default_factory=list)
    transcript: Path | None = None

    def began(self, account: str, environment: str, transcript: Path | None) -> None:  # noqa: ARG002 - the port
        self.transcript = transcript

    async def confirm(self, step: str, text: str) -> bool:  # noqa: ARG002 - the port
        self.before(step)
        return step != self.declined

    def done(self, step: RehearsalStep) -> None:
        self.steps.append(step)


async def run_rehearsal(
    config: Config, account: SimulatedAccount, operator: Operator, **options: Any
) -> Path:
    chosen = RehearsalOptions(times=options.pop("times", TIMES), **options)
    return await rehearse(config, account.name, chosen, operator, SystemClock())


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def transcripts(config: Config) -> list[Path]:
    assert config.home is not None
    return sorted((config.home / REHEARSALS).glob("*.jsonl"))
