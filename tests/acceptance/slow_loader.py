"""A strategy that takes longer to load than a silent lease lasts."""

from __future__ import annotations

import time

from qts.brokers.lease import LEASE_S
from qts.strategies import NoParams, Strategy


class SlowLoader(Strategy[NoParams], key="slow_loader"):
    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        time.sleep(1.5 * LEASE_S)  # as if it loaded a model
