"""Benchmarks, one module for each room: every figure beside the peer it is compared with."""

PACKAGES = ("router", "cache", "feed", "outbox", "events", "backtest")

__all__ = ["PACKAGES"]
