"""Settings of the simulated market that QTS runs on while it has no key of its own."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class DemoConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A simulator of feed.venue in a process of its own, while it has no key and no host."""

    enabled: Annotated[
        bool, Meta(description="false: no simulator; Upbit's own quotes need no key")
    ] = True
    seed: Annotated[int, Meta(ge=0, description="same seed, same market")] = 1
    symbols: Annotated[
        int, Meta(ge=1, le=4000, description="symbols that are listed; of Upbit 200 at most")
    ] = 2500
    speed: Annotated[
        float,
        Meta(ge=1, le=1000, description="seconds of the market in a second; 1 if it takes orders"),
    ] = 10.0
    scan_s: Annotated[
        float, Meta(gt=0, le=3600, description="a scan of all symbols takes this long, of Upbit 1")
    ] = 6.0
    port: Annotated[int, Meta(ge=0, le=65_535, description="of the simulator; 0: any")] = 0
