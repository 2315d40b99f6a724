"""Messages of everbit.system.event: what changed whether, or how, an account trades.

Triggers of the database publish the first three, in the transaction of the change.
"""

from __future__ import annotations

from typing import Any

import msgspec


class FailSafeChanged(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Transition of the fail-safe, or a notice that changes no state."""

    code: str
    reason: str
    before: str
    state: str
    actor: str


class KillSwitchChanged(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Kill switch of an account, or of a strategy in it."""

    scope: str
    strategy_key: str | None
    trading_enabled: bool
    reason: str
    actor: str


class StrategyParamsChanged(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Parameters that the operator has set for a strategy, all of them."""

    strategy_key: str
    params: dict[str, Any]
    version: int
    actor: str


class StrategyDisabled(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Strategy that a run calls no more, until its next start."""

    strategy_key: str
    reason: str
