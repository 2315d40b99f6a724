"""A strategy that decides nothing: what is ordered, the operator orders.

QTS_TEST_DIE_AT names a failpoint of orders at which the run kills itself.
"""

from __future__ import annotations

import os

from qts.orders import executor, failpoints, manager
from qts.strategies import NoParams, Strategy

if name := os.environ.get("QTS_TEST_DIE_AT"):
    for module in (executor, manager):
        vars(module)["failpoint"] = failpoints._Failpoint(name).reached


class Idler(Strategy[NoParams], key="idler"):
    pass
