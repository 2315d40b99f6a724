"""A strategy with the key of the operator's orders."""

from __future__ import annotations

from qts.strategies import NoParams, Strategy


class Impostor(Strategy[NoParams], key="manual"):
    pass
