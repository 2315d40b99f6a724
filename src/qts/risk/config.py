"""Settings of the room."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from qts.risk.limits import LimitsConfig
from qts.risk.stops_config import StopsConfig


class RiskConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much may be risked, and when a position leaves by itself."""

    limits: Annotated[LimitsConfig, Meta(description="what the gate holds every order to")] = (
        LimitsConfig()
    )
    stops: Annotated[StopsConfig, Meta(description="when a position leaves by itself")] = (
        StopsConfig()
    )
