"""Fixtures of the tests of explanations: a ledger that orders reach."""

from __future__ import annotations

from tests.orders.conftest import clock, database, kit

__all__ = ["clock", "database", "kit"]
