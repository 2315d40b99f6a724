"""Figures of a role: what it sent and received, what was missing, healed or refused."""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal["all", "feed", "strategies", "execution"]


class RoleStatus(msgspec.Struct, kw_only=True):
    """Counters of one role since its start; `pending` ones are of now."""

    frames_sent: int = 0
    ticks_sent: int = 0
    frames_received: int = 0
    ticks_received: int = 0
    gaps: int = 0  # breaks in the numbers of frames
    frames_missed: int = 0
    gaps_healed: int = 0
    ticks_healed: int = 0  # newest ticks that replaced missed ones
    gaps_pending: int = 0  # not healed yet
    signals_sent: int = 0
    signals_received: int = 0
    signals_stale: int = 0  # entries that were too old to be sent
    signals_outdated: int = 0  # entries that were decided before an order of their symbol changed
    signals_pending: int = 0  # not confirmed by NATS yet
    reports_sent: int = 0
    reports_received: int = 0
    reports_pending: int = 0
    duplicates: int = 0  # messages that came again and changed nothing
    refused: int = 0  # messages that could not be read
    reconnects: int = 0
