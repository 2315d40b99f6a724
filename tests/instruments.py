"""Instruments of tests: every symbol is listed, as a KRX stock or as a coin at Upbit."""

from __future__ import annotations

from qts.backtest import default_instruments

LISTED = default_instruments()
