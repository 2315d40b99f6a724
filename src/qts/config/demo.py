"""Settings of the simulated market that QTS runs on while it has no key of its own."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class DemoConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A KIS simulator in a process of its own; used when venues.kis names no key and no host."""

    seed: Annotated[int, Meta(ge=0, description="same seed, same market")] = 1
    symbols: Annotated[int, Meta(ge=1, le=4000, description="symbols that are listed")] = 2500
    speed: Annotated[
        float, Meta(ge=1, le=1000, description="seconds of the market in a second")
    ] = 10.0
    scan_s: Annotated[
        float, Meta(gt=0, le=3600, description="a scan of all symbols takes this long")
    ] = 6.0
    port: Annotated[int, Meta(ge=0, le=65_535, description="of the simulator; 0: any")] = 0
